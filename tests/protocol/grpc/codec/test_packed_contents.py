"""Long typed contents: the tensors and the errors are those of a parsed message, and no element becomes an object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.datatypes import DataType
from protocol.errors import ServerError
from protocol.grpc.codec import infer, packed_contents
from protocol.grpc.codec.infer import WireRequest, decode_request, parse_request
from protocol.grpc.codec.messages import parse
from protocol.proto import message_class

FIELDS = {
    "fp32_contents": 1.5,
    "fp64_contents": 2.5,
    "int_contents": 3,
    "bytes_contents": b"text",
    "bool_contents": True,
}


@pytest.fixture(scope="module", autouse=True)
def short() -> Iterator[None]:
    """Short contents are long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_contents, "LONG_ABOVE", 0)
        patch.setattr(infer, "COPY_UP_TO", 0)
        yield


def parsed(data: bytes) -> WireRequest:
    message: Any = parse(message_class("inference.ModelInferRequest"), data)
    return WireRequest(message, message.raw_input_contents)


def outcome(wire: WireRequest) -> Any:
    try:
        decoded = decode_request(wire)
    except ServerError as error:
        return type(error), error.message
    return [(each.name, each.datatype, each.shape, bytes(each.data)) for each in decoded.request.inputs]


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    message: Any = message_class("inference.ModelInferRequest")(model_name="m", id="7")
    for number in range(draw(st.integers(0, 4))):
        datatype = draw(st.sampled_from(["FP32", "FP64", "INT32", "BYTES", "BOOL", "FP16"]))
        count = draw(st.integers(0, 5))
        tensor = message.inputs.add(name=f"input {number}", datatype=datatype, shape=[count])
        for field in draw(st.lists(st.sampled_from([*FIELDS]), max_size=2)):
            getattr(tensor.contents, field).extend([FIELDS[field]] * draw(st.integers(0, 5)))
    for _ in range(draw(st.integers(0, 2))):
        message.raw_input_contents.append(bytes(4 * draw(st.integers(0, 3))))
    data: bytes = message.SerializeToString()
    return data


@given(data=messages())
def test_the_result_is_the_same(data: bytes) -> None:
    assert outcome(parse_request(data)) == outcome(parsed(data))


@given(data=messages(), more=messages())
def test_messages_that_are_merged(data: bytes, more: bytes) -> None:
    """As protobuf merges what comes twice."""
    assert outcome(parse_request(data + more)) == outcome(parsed(data + more))


@pytest.mark.parametrize(("field", "datatype"), [("fp32_contents", DataType.FP32), ("fp64_contents", DataType.FP64)])
def test_elements_stay_where_they_are(field: str, datatype: DataType) -> None:
    message: Any = message_class("inference.ModelInferRequest")(model_name="m")
    array = np.random.default_rng(1).random(1000).astype(datatype.dtype)
    for name in ("a", "b"):
        tensor = message.inputs.add(name=name, datatype=datatype.name, shape=[1000])
        getattr(tensor.contents, field).extend(array)
    wire = parse_request(data := message.SerializeToString())
    assert not any(getattr(tensor.contents, field) for tensor in wire.message.inputs), "none is parsed"
    for tensor in decode_request(wire).request.inputs:
        assert isinstance(tensor.data, memoryview)
        assert tensor.data.obj is data
        assert np.array_equal(tensor.as_numpy(), array)
