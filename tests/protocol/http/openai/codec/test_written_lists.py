"""Answers with a long list, in parts: their JSON is that of the whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.http.openai.codec.written_lists import written_list
from tests.sliced import finished

MEMBERS = st.dictionaries(st.text(max_size=3), st.text(max_size=5) | st.integers(-9, 9), max_size=3)


@given(MEMBERS, st.lists(MEMBERS, max_size=5), MEMBERS)
def test_the_json_is_that_of_the_whole(before: dict[str, Any], items: list[Any], after: dict[str, Any]) -> None:
    before = {"first": 1, **before}
    made = b"".join(finished(written_list(before, 'a "list"', items, after)))
    assert json.loads(made) == {**before, 'a "list"': items, **after}


@pytest.mark.parametrize("count", [0, 1, 300])
def test_the_loop_may_turn_behind_each(count: int) -> None:
    items = ["x" * 1000] * count
    assert sum(1 for _ in written_list({"a": 1}, "items", items, {})) == count
    parts = finished(written_list({"a": 1}, "items", items, {}))
    assert len(parts) == 1 + count // 66
    assert json.loads(b"".join(parts)) == {"a": 1, "items": items}
