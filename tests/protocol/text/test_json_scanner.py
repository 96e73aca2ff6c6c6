"""JSON values: where they end, wherever they are cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.text.json_scanner import JsonValue

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(value=VALUES, size=st.integers(1, 5), indent=st.none() | st.just(1), ensure_ascii=st.booleans())
def test_a_value_ends_where_it_ends(value: Any, size: int, indent: int | None, ensure_ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)
    machine = JsonValue()
    found = ""
    for place in range(0, len(text) + 1, size):
        piece = f"{text}, more"[place : place + size]
        end = machine.feed(piece, 0, len(piece))
        found += piece[:end]
        if machine.is_done:
            break
        assert end == len(piece)
    assert (found, machine.is_broken) == (text, False)


@pytest.mark.parametrize("text", ["<", "}", ",", "<tool_call>"])
def test_no_value_begins(text: str) -> None:
    machine = JsonValue()
    assert machine.feed(text, 0, len(text)) == 0
    assert machine.is_broken


def test_a_marker_outside_of_strings_breaks_a_value() -> None:
    machine = JsonValue()
    text = '{"a": "<b>", <end>'
    assert text[: machine.feed(text, 0, len(text))] == '{"a": "<b>", '
    assert machine.is_broken
