"""Values of a JSON text, counted in windows of it, whatever stands at their ends."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.http.codec.json_values import count_values, has_more_values
from tests.sliced import finished

TEXTS = st.text(st.sampled_from('a,[]{}"\\ \n\u00e4\U0001f600'), max_size=8)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=30,
)


@given(VALUES, st.booleans(), st.integers(2, 9))
def test_windows_of_any_size_find_what_is_outside_of_texts(value: Any, is_ascii: bool, window_size: int) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii).encode()
    outside = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", text)
    count = outside.count(b",") + 4 * (outside.count(b"[") + outside.count(b"{"))
    assert finished(count_values(memoryview(text), 1000, window_size=window_size)) == count
    assert finished(has_more_values(memoryview(text), count - 1))
    assert not finished(has_more_values(memoryview(text), count))


@pytest.mark.parametrize("text", [b"", b"\\", b'"', b'"\\', b'[1,"a\\', b"\\\\\\"])
@pytest.mark.parametrize("window_size", [2, 3])
def test_a_text_that_is_no_json_is_read_to_its_end(text: bytes, window_size: int) -> None:
    assert finished(count_values(memoryview(text), 10, window_size=window_size)) <= 5


def test_no_more_is_read_than_has_to_be() -> None:
    work = count_values(memoryview(b"[" * 100), 40, window_size=4)
    assert sum(1 for _ in work) == 2


def test_the_loop_turns_while_a_long_text_is_read() -> None:
    assert sum(1 for _ in has_more_values(memoryview(b'["%b"]' % (b"A" * (1 << 20))), 10)) > 30
