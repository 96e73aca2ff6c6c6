"""Long typed contents in slices: requests and errors are those of a parsed message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, ServerError
from protocol.grpc.codec import long_contents, number_contents, packed_contents
from protocol.grpc.codec.infer import WireRequest, decode_request
from protocol.grpc.codec.long_contents import LongContents, has_long_contents, parse_long_request
from protocol.grpc.codec.messages import parse
from protocol.grpc.codec.request_templates import RequestTemplates
from protocol.grpc.codec.wire import encode_varint, field_start
from protocol.messages import LaidOutTensor
from protocol.proto import message_class
from tests.sliced import finished

SIGNED_64, UNSIGNED_64 = st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, (1 << 64) - 1)
VALUES: dict[str, tuple[st.SearchStrategy[Any], tuple[str, ...]]] = {
    "bool_contents": (st.booleans(), ("BOOL",)),
    "int_contents": (st.integers(-(1 << 31), (1 << 31) - 1), ("INT32", "INT16", "INT8")),
    "int64_contents": (SIGNED_64, ("INT64",)),
    "uint_contents": (st.integers(0, (1 << 32) - 1), ("UINT32", "UINT16", "UINT8")),
    "uint64_contents": (UNSIGNED_64, ("UINT64",)),
    "fp32_contents": (st.floats(width=32, allow_nan=False), ("FP32",)),
    "fp64_contents": (st.floats(allow_nan=False), ("FP64",)),
    "bytes_contents": (st.binary(max_size=200), ("BYTES",)),
}
DATATYPES = [name for _, names in VALUES.values() for name in names]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short contents are long, and windows small."""
    monkeypatch.setattr(packed_contents, "LONG_ABOVE", 0)
    monkeypatch.setattr(long_contents, "_LARGE_ABOVE", 0)
    monkeypatch.setattr(number_contents, "_WINDOW", 16)
    monkeypatch.setattr(long_contents, "_SMALL_INPUT", 0)
    monkeypatch.setattr(long_contents, "_TEXTS", 3)


def in_one_go(data: bytes) -> WireRequest:
    message: Any = parse(message_class("inference.ModelInferRequest"), data)
    return WireRequest(message, message.raw_input_contents)


def outcome(data: bytes, *, in_slices: bool) -> Any:
    try:
        wire = finished(parse_long_request(memoryview(data))) if in_slices else in_one_go(data)
        decoded = decode_request(wire)
    except ServerError as error:
        return type(error), error.message
    inputs = decoded.request.inputs
    return wire.names, [(each.name, each.datatype, each.shape, bytes(each.data)) for each in inputs]


def message_of(*tensors: tuple[str, dict[str, list[Any]]], raw: int = 0) -> bytes:
    message: Any = message_class("inference.ModelInferRequest")(model_name="m", id="7")
    for number, (datatype, contents) in enumerate(tensors):
        count = max(map(len, contents.values()), default=0)
        tensor = message.inputs.add(name=f"input {number}", datatype=datatype, shape=[count])
        for field, values in contents.items():
            getattr(tensor.contents, field).extend(values)
    message.raw_input_contents.extend([b"1234"] * raw)
    data: bytes = message.SerializeToString()
    return data


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    tensors = []
    for _ in range(draw(st.integers(0, 3))):
        fields = draw(st.lists(st.sampled_from([*VALUES]), min_size=1, max_size=2, unique=True))
        datatype = draw(st.sampled_from([*VALUES[fields[0]][1], draw(st.sampled_from(DATATYPES))]))
        contents = {field: draw(st.lists(VALUES[field][0], max_size=20)) for field in fields}
        tensors.append((datatype, contents))
    return message_of(*tensors, raw=draw(st.integers(0, 1)))


@given(data=messages())
def test_the_result_is_the_same(data: bytes) -> None:
    assert outcome(data, in_slices=True) == outcome(data, in_slices=False)


@given(data=messages(), more=messages())
def test_messages_that_are_merged(data: bytes, more: bytes) -> None:
    """As protobuf merges what comes twice."""
    assert outcome(data + more, in_slices=True) == outcome(data + more, in_slices=False)


@given(data=messages(), change=st.tuples(st.integers(0, 400), st.integers(0, 255)))
def test_a_byte_is_another(data: bytes, change: tuple[int, int]) -> None:
    place, byte = change
    changed = bytearray(data)
    changed[place : place + 1] = bytes([byte])
    alone, slices = outcome(bytes(changed), in_slices=False), outcome(bytes(changed), in_slices=True)
    if alone != slices:  # the parser was given what is left of the message, whose size its sentence says
        assert "is not a valid inference.ModelInferRequest message" in alone[1]
        assert "is not a valid inference.ModelInferRequest message" in slices[1]


@given(st.lists(st.integers(0, 1 << 20), max_size=50), st.integers(1, 3))
def test_varints_of_more_bytes_than_they_need(values: list[int], more: int) -> None:
    packed = b"".join(bytes([value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14]) for value in values)
    packed = packed.replace(b"\x00", b"\x80" * more + b"\x00") if more > 1 else packed
    data = tensor_of(b"\x12" + bytes([len(packed) & 0x7F | 0x80, len(packed) >> 7]) + packed, len(values))
    assert outcome(data, in_slices=True) == outcome(data, in_slices=False)


def tensor_of(contents: bytes, count: int) -> bytes:
    """A message with an INT32 tensor, of contents on the wire."""
    size = len(contents)
    inner = b"\x0a\x01a\x12\x05INT32\x1a" + bytes([1 if count < 128 else 2])
    inner += bytes([count]) if count < 128 else bytes([count & 0x7F | 0x80, count >> 7])
    inner += b"\x2a" + bytes([size & 0x7F | 0x80, size >> 7]) + contents
    return b"\x0a\x01m\x2a" + bytes([len(inner) & 0x7F | 0x80, len(inner) >> 7]) + inner


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BYTES", "bytes_contents", [b"some words"] * 1000),
        ("INT32", "int_contents", [-1, 0, 300] * 1000),
        ("UINT64", "uint64_contents", [(1 << 64) - 1, 0, 300] * 1000),
    ],
)
def test_the_loop_turns_meanwhile_and_no_element_is_parsed(datatype: str, field: str, values: list[Any]) -> None:
    work, steps = parse_long_request(memoryview(message_of((datatype, {field: values})))), 0
    while True:
        try:
            next(work)
        except StopIteration as stopped:
            wire = stopped.value
            break
        steps += 1
    assert steps > 100
    assert not any(getattr(tensor.contents, field) for tensor in wire.message.inputs)
    (tensor,) = decode_request(wire).request.inputs
    assert tensor.as_numpy().tolist() == values
    assert (type(tensor) is LaidOutTensor) is (datatype == "BYTES"), "nobody has to look at them again"


def test_who_cannot_wait_is_told() -> None:
    texts = message_of(("BYTES", {"bytes_contents": [b"a"] * 20000}))
    templates = RequestTemplates()
    with pytest.raises(LongContents):
        templates.read(texts)
    floats = message_of(("FP32", {"fp32_contents": [1.0] * 20000}))
    assert templates.read(floats).model_name == "m"
    assert not has_long_contents(memoryview(floats))
    assert DataType.FP32 is decode_request(finished(parse_long_request(memoryview(floats)))).request.inputs[0].datatype
    assert np.array_equal(
        decode_request(finished(parse_long_request(memoryview(floats)))).request.inputs[0].as_numpy(), np.ones(20000)
    )


def on_wire(contents: bytes, datatype: str, count: int, *, more: bytes = b"") -> bytes:
    """A message with one tensor, of contents on the wire; `more` are other fields of it."""
    start: Any = message_class("inference.ModelInferRequest.InferInputTensor")(
        name="a", datatype=datatype, shape=[count]
    )
    tensor: bytes = start.SerializeToString() + more + field_start(5, len(contents)) + contents
    return b"\x0a\x01m" + field_start(5, len(tensor)) + tensor


def alone(field: str, values: list[Any]) -> bytes:
    """Contents whose numbers are not packed."""
    number = message_class("inference.InferTensorContents").DESCRIPTOR.fields_by_name[field].number
    if field in ("fp32_contents", "fp64_contents"):
        size, key = (4, number << 3 | 5) if field == "fp32_contents" else (8, number << 3 | 1)
        return b"".join(bytes([key]) + np.array(value, f"<f{size}").tobytes() for value in values)
    return b"".join(bytes([number << 3]) + encode_varint(int(value) & (1 << 64) - 1) for value in values)


NUMBERS = [field for field in VALUES if field != "bytes_contents"]


@given(data=st.data(), field=st.sampled_from(NUMBERS))
def test_numbers_that_are_not_packed(data: st.DataObject, field: str) -> None:
    """Or in part, in any order."""
    values, names = VALUES[field]
    runs = data.draw(st.lists(st.tuples(st.booleans(), st.lists(values, max_size=20)), max_size=4))
    contents = b""
    for is_packed, numbers in runs:
        message: Any = message_class("inference.InferTensorContents")(**{field: numbers})
        contents += message.SerializeToString() if is_packed else alone(field, numbers)
    whole = on_wire(contents, data.draw(st.sampled_from(names)), sum(len(numbers) for _, numbers in runs))
    assert outcome(whole, in_slices=True) == outcome(whole, in_slices=False)


@given(st.binary(max_size=60), st.sampled_from(["INT32", "FP32", "BYTES"]))
def test_contents_of_any_bytes(contents: bytes, datatype: str) -> None:
    whole = on_wire(contents, datatype, 3)
    alone, slices = outcome(whole, in_slices=False), outcome(whole, in_slices=True)
    assert alone == slices or "is not a valid inference.ModelInferRequest message" in alone[1]


@pytest.mark.parametrize(
    ("datatype", "contents"),
    [
        ("INT32", b"\x10\x05" * 100_000),
        ("FP32", b"\x35abcd" * 50_000),
        ("FP64", b"\x39abcdefgh" * 30_000),
        ("BOOL", b"\x08\x01" * 100_000),
    ],
)
def test_a_million_fields_are_numbers_without_objects(datatype: str, contents: bytes) -> None:
    size = {"INT32": 2, "FP32": 5, "FP64": 9, "BOOL": 2}[datatype]
    data = memoryview(on_wire(contents, datatype, len(contents) // size))
    assert has_long_contents(data)
    wire = finished(parse_long_request(data))
    assert not wire.message.inputs[0].contents.ListFields()
    (tensor,) = decode_request(wire).request.inputs
    assert tensor.as_numpy().shape == (len(contents) // size,)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (on_wire(b"\x10\x05\x20\x05" * 80_000, "INT32", 160_000), "contents are in several fields"),
        (on_wire(b"\x12\x01\x05" * 100_000, "INT32", 100_000), "contents are in several fields"),
        (on_wire(b"\x10\x05" * 160_000, "INT32", 160_002, more=b"\x2a\x04\x10\x05\x10\x05"), "in several fields"),
        (b"\x0a\x01m" + b"\x3a\x00" * 200_000, "more than 4096 fields"),
        (b"\x0a\x01m" + b"\x2a\x00" * 200_000, "more than 4096 fields"),
        (b"\x0a\x01m" + b"\x78\x00" * 200_000, "more than 4096 fields"),
        (b"\x0a\x01m" + b"\x7b" * 300_000, "more than 4096 fields, or broken ones"),
        (b"\x0a\x01m" + field_start(6, 300_000) + b"\x12\x00" * 150_000, "field 6 of the request"),
        (b"\x0a\x01m" + field_start(5, 300_004) + b"\x1a\xe0\xa7\x12" + b"\x01" * 300_000, "at most 64 dimensions"),
        (
            b"\x0a\x01m" + 100 * (field_start(5, 8000) + b"\x22\x00" * 4000),
            "the inputs of the request have more than 16384 fields",
        ),
    ],
    ids=[
        *("two_kinds", "many_parts", "two_contents", "raws", "inputs", "unknown", "groups", "outputs", "shape"),
        "parameters",
    ],
)
def test_what_only_a_parser_could_read_is_refused_if_it_is_large(data: bytes, told: str) -> None:
    assert has_long_contents(memoryview(data))
    error, text = outcome(data, in_slices=True)
    assert error is InvalidArgument
    assert told in text
