"""What pictures take of a prompt."""

from __future__ import annotations

import pytest

from protocol.text.pictures import PictureTokens

PICTURES = PictureTokens(mark=9, size=3)


@pytest.mark.parametrize(
    ("ids", "pictures", "expanded"),
    [
        ([1, 2], 0, [1, 2]),
        ([1, 9, 2], 1, [1, 9, 9, 9, 2]),
        ([9, 9], 2, [9] * 6),
        # A mark without a picture, and pictures without a mark.
        ([1, 9, 2, 9], 1, [1, 9, 9, 9, 2, 9]),
        ([1, 9], 0, [1, 9]),
        ([1, 9, 2], 2, [9, 9, 9, 1, 9, 9, 9, 2]),
        ([], 1, [9, 9, 9]),
    ],
)
def test_tokens_of_pictures(ids: list[int], pictures: int, expanded: list[int]) -> None:
    assert PICTURES.expanded(ids, pictures) == expanded
    assert PICTURES.more(ids, pictures) == len(expanded) - len(ids)
