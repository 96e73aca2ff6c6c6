"""How requests and responses are kept: whole, truncated, and with trailing bytes."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.datatypes import DataType
from protocol.errors import Internal
from protocol.jobs.payload import decode_request, decode_responses, encode_request, encode_responses
from protocol.messages import InferenceRequest, InferenceResponse, Tensor

TENSORS = [
    Tensor.from_numpy("A", np.arange(6, dtype=np.float32).reshape(2, 3)),
    Tensor("B", DataType.BYTES, (2,), b"\x01\0\0\0x\0\0\0\0"),
    Tensor("EMPTY", DataType.INT8, (0, 3), b""),
]
REQUEST = InferenceRequest(
    "m",
    TENSORS,
    3,
    id="ä",
    requested_outputs=("OUT",),
    parameters={"a": 1, "b": True, "c": 1.5, "d": "x"},
    priority=2,
    timeout_microseconds=10,
)
RESPONSES = [
    InferenceResponse("m", 3, TENSORS, id="ä", parameters={"n": 1}, is_final=False),
    InferenceResponse("m", 3, []),
]


def _same(got: list[Tensor], expected: list[Tensor]) -> bool:
    return [(t.name, t.datatype, t.shape, bytes(t.data)) for t in got] == [
        (t.name, t.datatype, t.shape, bytes(t.data)) for t in expected
    ]


def test_a_request_comes_back() -> None:
    got = decode_request(b"".join(encode_request(REQUEST)))
    assert _same(got.inputs, REQUEST.inputs)
    for field in (
        "model_name",
        "model_version",
        "id",
        "requested_outputs",
        "parameters",
        "priority",
        "timeout_microseconds",
    ):
        assert getattr(got, field) == getattr(REQUEST, field)


def test_responses_come_back() -> None:
    got = decode_responses(b"".join(encode_responses(RESPONSES)))
    assert len(got) == 2
    for one, expected in zip(got, RESPONSES, strict=True):
        assert _same(one.outputs, expected.outputs)
        assert (one.id, one.parameters, one.is_final) == (expected.id, expected.parameters, expected.is_final)
        assert (one.model_name, one.model_version) == ("m", 3)
    assert decode_responses(b"".join(encode_responses([]))) == []


@pytest.mark.parametrize("cut", range(len(b"".join(encode_request(REQUEST)))))
def test_a_truncated_request_is_refused(cut: int) -> None:
    with pytest.raises(Internal, match="the request that was kept cannot be read"):
        decode_request(b"".join(encode_request(REQUEST))[:cut])


def test_trailing_bytes_are_refused() -> None:
    with pytest.raises(Internal, match="1 bytes too many"):
        decode_request(b"".join(encode_request(REQUEST)) + b"x")
    with pytest.raises(Internal, match="1 bytes too many"):
        decode_responses(b"".join(encode_responses(RESPONSES)) + b"x")


@given(st.binary(max_size=200))
def test_anything_else_is_refused(data: bytes) -> None:
    for decode in (decode_request, decode_responses):
        with suppress(Internal):
            decode(data)
