"""What errors say of clients' values."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import shown_value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "None"),
        (3, "3"),
        ("a'b", '"a\'b"'),
        ("x" * 10**6, f"'{'x' * 39}"),
        ({"a": 1, "b": None}, "{'a': 1, 'b': None}"),
        ([1, 2], "[1, 2]"),
        (["x" * 10**6], f"['{'x' * 38}"),
        ([0] * 9, "a list of 9"),
        ({"a": {}}, "an object with 1 members"),
        ([[[]]], "a list of 1"),
    ],
)
def test_values(value: Any, shown: str) -> None:
    assert shown_value(value) == shown


def test_more_is_shown_where_it_is_wanted() -> None:
    assert len(shown_value("x" * 100, 80)) == 80
