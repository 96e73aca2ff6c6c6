"""What a job's records take and keep."""

from __future__ import annotations

import pytest

from protocol.errors import InvalidArgument
from protocol.jobs.job import MAX_CUSTOM_ID, ItemError, check_custom_id


@pytest.mark.parametrize("custom_id", ["", "a", "ä𝄞", "x" * MAX_CUSTOM_ID])
def test_names_of_items(custom_id: str) -> None:
    check_custom_id(custom_id)


@pytest.mark.parametrize(
    ("custom_id", "text"), [("x" * (MAX_CUSTOM_ID + 1), "at most 512 characters"), ("a\ud800", "half of a surrogate")]
)
def test_what_is_no_name_of_an_item(custom_id: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        check_custom_id(custom_id)


def test_the_text_of_an_error_can_always_be_kept() -> None:
    """It may be a model's own."""
    assert ItemError("INTERNAL", "ä \ud800").message == "ä ?"
