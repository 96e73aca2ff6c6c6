"""Long texts of a JSON text, found wherever windows of it end, and base64 in slices."""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.http.codec.base64_text import decode_base64
from protocol.http.codec.long_texts import find_long_texts
from tests.sliced import finished

TEXTS = st.text(st.sampled_from('ab"\\{[,\n\u00e4'), max_size=12) | st.text("ab,[", max_size=40)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=20,
)


@given(VALUES, st.booleans(), st.integers(2, 8))
def test_those_that_are_ascii_as_they_stand_are_found(value: Any, is_ascii: bool, window_size: int) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii).encode()
    found = finished(find_long_texts(memoryview(text), window_size=window_size, long_above=10))
    strings = [match for match in re.finditer(rb'"(?:[^"\\]|\\.)*"', text) if match.end() - match.start() > 10]
    usual = [match for match in strings if match[0].isascii() and b"\\" not in match[0]]
    assert [(each.start, each.end) for each in found] == [match.span() for match in usual]


@given(st.binary(max_size=60), st.integers(2, 9))
def test_a_text_that_is_no_json_is_read_to_its_end(text: bytes, window_size: int) -> None:
    for each in finished(find_long_texts(memoryview(text), window_size=window_size, long_above=10)):
        assert text[each.start] == text[each.end - 1] == ord('"')


def test_the_loop_turns_meanwhile() -> None:
    text = b'["%b"]' % (b"A" * (1 << 20))
    work, steps = find_long_texts(memoryview(text)), 0
    while True:
        try:
            next(work)
        except StopIteration as stopped:
            (found,) = stopped.value
            break
        steps += 1
    assert (found.start, found.end) == (1, len(text) - 1)
    assert steps >= 32


@pytest.mark.parametrize("size", [0, 1, 2, 3, 100_000, 100_001, 100_002])
def test_base64_is_what_it_stands_for(size: int) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert finished(decode_base64(base64.b64encode(content))) == content
    assert sum(1 for _ in decode_base64(base64.b64encode(content))) >= size // 25_000


@pytest.mark.parametrize("place", [0, 5, 32767, 32768, 60_000, 65_535])
@pytest.mark.parametrize("put", [b"=", b"==", b"A", b"\n", b"\xff", b"====", b"%"])
def test_what_is_wrong_is_told_as_of_the_whole(place: int, put: bytes) -> None:
    text = b"QUJD" * (1 << 14)
    text = text[:place] + put + text[place:]
    with pytest.raises(binascii.Error) as whole:
        base64.b64decode(text, validate=True)
    with pytest.raises(binascii.Error) as caught:
        finished(decode_base64(memoryview(text)))
    assert str(caught.value) == str(whole.value)
