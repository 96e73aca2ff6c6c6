"""Cutting a field out of serialized messages, and appending one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.grpc.codec.wire import cut_field, encode_varint, field_start
from protocol.proto import message_class

Request: Any = message_class("inference.ModelInferRequest")


@pytest.mark.parametrize(
    ("value", "encoded"), [(0, b"\0"), (1, b"\1"), (127, b"\x7f"), (128, b"\x80\1"), (300, b"\xac\2")]
)
def test_varints(value: int, encoded: bytes) -> None:
    assert encode_varint(value) == encoded


@given(st.text(max_size=20), st.lists(st.binary(max_size=300), max_size=5), st.lists(st.integers(), max_size=3))
def test_cutting_leaves_the_other_fields(name: str, raw: list[bytes], numbers: list[int]) -> None:
    request = Request(model_name=name, raw_input_contents=raw)
    for number in numbers:
        request.inputs.add(name=str(number), shape=[number % 2**63])
    data = request.SerializeToString()
    cut = cut_field(memoryview(data), 7)
    assert cut is not None
    rest, values = cut
    assert [bytes(value) for value in values] == raw
    request.ClearField("raw_input_contents")
    assert Request.FromString(rest) == request


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=3))
def test_an_appended_field_is_parsed(pieces: list[bytes]) -> None:
    """Several buffers make one value, in one length-delimited field."""
    head = Request(model_name="m").SerializeToString()
    data = head + field_start(7, sum(map(len, pieces))) + b"".join(pieces)
    assert Request.FromString(data) == Request(model_name="m", raw_input_contents=[b"".join(pieces)])


PLAIN = Request(model_name="m", raw_input_contents=[b"abc"]).SerializeToString()
NOT_PLAIN = {
    "truncated value": PLAIN[:-1],
    "truncated length": b"\x3a",
    "unfinished varint": b"\x08\xff",
    "endless varint": b"\x08" + b"\xff" * 20,
    "length past the end": b"\x3a\xff\xff\xff\xff\x0f",
    "length of 64 bits": b"\x3a" + b"\xff" * 9 + b"\x01",
    "truncated 64 bits": b"\x41\0\0\0",
    "truncated 32 bits": b"\x45\0\0\0",
    "group": b"\x0b\x0c",
    "field 0": b"\x02\x01a",
    "many fields": b"\x08\x01" * 5000,
}


@pytest.mark.parametrize("data", NOT_PLAIN.values(), ids=NOT_PLAIN.keys())
def test_what_is_not_plain_is_left_to_the_parser(data: bytes) -> None:
    assert cut_field(memoryview(data), 7) is None


@given(st.binary(max_size=60))
def test_any_bytes_are_cut_without_loss_or_not_at_all(data: bytes) -> None:
    cut = cut_field(memoryview(data), 7)
    if cut is not None:
        rest, values = cut
        overhead = sum(len(value) for value in values)
        assert len(rest) + overhead <= len(data)
        if not values:
            assert rest == data


def test_other_wire_types_of_the_same_field_stay() -> None:
    """Field 7 as a number is unknown to the message, and the parser's to judge."""
    data = b"\x38\x01" + b"\x3a\x01a"
    cut = cut_field(memoryview(data), 7)
    assert cut is not None
    assert (cut[0], [bytes(value) for value in cut[1]]) == (b"\x38\x01", [b"a"])
