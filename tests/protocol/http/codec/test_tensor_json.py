"""JSON `data` to raw layouts and back."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocol.datatypes import DataType
from protocol.errors import Internal, InvalidArgument, PayloadTooLarge
from protocol.http.codec.tensor_json import decode_data, encode_data
from protocol.messages import Tensor, encode_bytes_elements
from tests.protocol.http.wire import arrays, json_values, same

LIMIT = 1 << 20


def decode(datatype: DataType, shape: tuple[int, ...], data: Any) -> NDArray[Any]:
    return Tensor("x", datatype, shape, decode_data("x", datatype, shape, data, model="m", max_size=LIMIT)).as_numpy()


@given(arrays(text=True))
def test_nested_values_come_back(case: tuple[DataType, NDArray[Any]]) -> None:
    """Every datatype, every shape, nested as the shape says."""
    datatype, array = case
    assert same(datatype, decode(datatype, array.shape, json_values(datatype, array)), array)


@given(arrays(text=True))
def test_outputs_are_flat_and_come_back(case: tuple[DataType, NDArray[Any]]) -> None:
    """What is written is a flat list, and reads as the same tensor."""
    datatype, array = case
    tensor = Tensor.from_numpy("x", array)
    values = json.loads(msgspec.json.encode(encode_data(tensor)))
    assert not any(isinstance(value, list) for value in values)
    assert same(datatype, decode(datatype, array.shape, values), array)


def nest(leaves: list[int], data: st.DataObject, depth: int = 0) -> list[Any]:
    """The leaves in lists of any form."""
    out: list[Any] = []
    while leaves:
        if depth < 5 and data.draw(st.booleans()):
            cut = data.draw(st.integers(0, len(leaves)))
            out.append(nest(leaves[:cut], data, depth + 1))
            leaves = leaves[cut:]
        else:
            out.append(leaves[0])
            leaves = leaves[1:]
    return out


@given(st.integers(1, 12), st.data())
def test_any_nesting_is_read_depth_first(count: int, data: st.DataObject) -> None:
    """Nesting need not match the shape; only order and count matter."""
    nested = nest(list(range(count)), data)
    assert decode(DataType.INT32, (count,), nested).tolist() == list(range(count))


@pytest.mark.parametrize("leaves", [[1, 2], [[1], 2]], ids=["regular", "ragged"])
def test_the_deepest_nesting_allowed_is_100(leaves: list[Any]) -> None:
    depth = 1 if leaves == [1, 2] else 2
    nested: list[Any] = leaves
    for _ in range(100 - depth):
        nested = [nested]
    assert decode(DataType.INT8, (2,), nested).tolist() == [1, 2]
    with pytest.raises(InvalidArgument, match="JSON nesting depth exceeds maximum allowed limit"):
        decode(DataType.INT8, (2,), [nested])


@pytest.mark.parametrize("datatype", [t for t in DataType if t.name.lstrip("U").startswith("INT")])
def test_integers_are_checked_for_range(datatype: DataType) -> None:
    """Both ends of the range are taken, one past either is refused with value and range."""
    bounds = np.iinfo(datatype.dtype)
    ends = [int(bounds.min), int(bounds.max)]
    assert decode(datatype, (2,), ends).tolist() == ends
    for value in (ends[0] - 1, ends[1] + 1, 10**30):
        with pytest.raises(InvalidArgument, match=f"value {value} for input 'x' is out of range of datatype") as caught:
            decode(datatype, (2,), [0, value])
        assert f"expected {ends[0]} to {ends[1]}" in caught.value.message


@pytest.mark.parametrize("datatype", [DataType.FP16, DataType.BF16, DataType.FP32, DataType.FP64])
def test_floats_take_any_number(datatype: DataType) -> None:
    """Integers, NaN and the infinities; past the range of the narrower ones is infinity."""
    values = decode(datatype, (5,), [1, -0.5, math.nan, math.inf, -math.inf])
    assert values.astype(np.float64).tolist()[:2] == [1.0, -0.5]
    assert np.isnan(values[2])
    assert [float(v) for v in values[3:]] == [math.inf, -math.inf]
    if datatype is not DataType.FP64:
        assert float(decode(datatype, (1,), [1e300])[0]) == math.inf
    with pytest.raises(InvalidArgument, match=r"a number for input 'x' of datatype \w+ is out of range"):
        decode(datatype, (1,), [10**400])


@pytest.mark.parametrize(
    ("datatype", "value", "text"),
    [
        (DataType.BOOL, 1, "non-boolean as boolean for input 'x' of datatype BOOL, got int"),
        (DataType.INT32, 1.0, "non-signed-integer as signed-integer for input 'x' of datatype INT32, got float"),
        (DataType.INT32, True, "non-signed-integer as signed-integer for input 'x' of datatype INT32, got bool"),
        (DataType.UINT8, "1", "non-unsigned-integer as unsigned-integer for input 'x' of datatype UINT8, got str"),
        (DataType.FP32, "1", "non-number as double for input 'x' of datatype FP32, got str"),
        (DataType.BF16, False, "non-number as double for input 'x' of datatype BF16, got bool"),
        (DataType.FP64, None, "non-number as double for input 'x' of datatype FP64, got null"),
        (DataType.FP32, {"a": 1}, "non-number as double for input 'x' of datatype FP32, got object"),
        (DataType.BYTES, 1, "non-string as string for input 'x' of datatype BYTES, got int"),
    ],
)
def test_elements_of_another_type_are_refused(datatype: DataType, value: Any, text: str) -> None:
    good: Any = "a" if datatype is DataType.BYTES else datatype is DataType.BOOL or 1
    with pytest.raises(InvalidArgument) as caught:
        decode(datatype, (3,), [good, [good], value])
    assert caught.value.message == f"Unable to parse 'data': attempt to access JSON {text}"


@pytest.mark.parametrize("data", [5, "x", {"a": 1}, True])
def test_data_that_is_no_array_is_refused(data: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^Unable to parse 'data': attempt to access JSON non-array as array"):
        decode(DataType.FP32, (1,), data)


@pytest.mark.parametrize("datatype", [DataType.FP32, DataType.BYTES])
def test_too_many_or_too_few_elements(datatype: DataType) -> None:
    """The sentence says what the shape holds and what there is."""
    one: Any = "a" if datatype is DataType.BYTES else 1
    with pytest.raises(InvalidArgument, match=r"^Unable to parse 'data': Shape .* 'x' for model 'm': .* 'data' has 3$"):
        decode(datatype, (2,), [one] * 3)
    with pytest.raises(InvalidArgument, match=r"^Failed to parse 'data' field: shape .* \[2\] holds 2 elements"):
        decode(datatype, (2,), [one])
    with pytest.raises(InvalidArgument, match="'data' has 0"):
        decode(datatype, (1,), [[], []])


@pytest.mark.parametrize("data", [[], [1, 2], "x"])
def test_a_tensor_without_elements_ignores_its_data(data: Any) -> None:
    assert decode(DataType.FP32, (0, 2), data).shape == (0, 2)


def test_a_tensor_over_the_limit_is_refused_before_it_is_built() -> None:
    """The size is known from the shape; BYTES only from the elements."""
    text = "JSON input 'x' has a byte_size .* exceeds the maximum allowed value of 1048576 bytes"
    with pytest.raises(PayloadTooLarge, match=text):
        decode(DataType.INT64, (1 << 40,), [1])
    with pytest.raises(PayloadTooLarge, match=text):
        decode(DataType.BYTES, (2,), ["a" * LIMIT, "b"])


def test_bytes_that_are_no_text_need_the_binary_format() -> None:
    """The sentence names the output, the element and the way out."""
    tensor = Tensor("out", DataType.BYTES, (2,), encode_bytes_elements([b"fine", b"\xff"]))
    with pytest.raises(InvalidArgument, match=r"element 1 of output 'out'.*binary data format.*'binary_data' to true"):
        encode_data(tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor("out", DataType.FP32, (2,), bytes(4)),
        Tensor("out", DataType.BYTES, (2,), encode_bytes_elements([b"a"])),
        Tensor("out", DataType.BYTES, (1,), b"\x05\x00\x00\x00a"),
    ],
    ids=["size", "count", "layout"],
)
def test_an_output_unlike_its_shape_is_the_models_fault(tensor: Tensor) -> None:
    with pytest.raises(Internal, match=r"^Failed to write 'data' field: output tensor shape .* for 'out'"):
        encode_data(tensor)


def test_floats_are_written_exactly() -> None:
    """An FP32 value is written as the double that it is."""
    tensor = Tensor.from_numpy("x", np.array([0.1, 1e-45], np.float32))
    assert encode_data(tensor) == [float(np.float32(0.1)), float(np.float32(1e-45))]


def test_words_that_json_lacks_are_written_as_words() -> None:
    values = np.array([1.5, np.nan, -np.inf, np.inf, -0.0], np.float32)
    written = encode_data(Tensor.from_numpy("OUT", values))
    assert isinstance(written, msgspec.Raw)
    assert bytes(written) == b"[1.5,NaN,-Infinity,Infinity,-0.0]"


def test_numbers_whose_sum_is_none_are_numbers_all_the_same() -> None:
    largest = np.finfo(np.float64).max
    assert encode_data(Tensor.from_numpy("OUT", np.array([largest, largest]))) == [largest, largest]


@pytest.mark.parametrize("datatype", [each for each in DataType if each.name != "INVALID"])
def test_an_output_without_elements_is_an_empty_list(datatype: DataType) -> None:
    assert encode_data(Tensor("OUT", datatype, (0, 3), memoryview(b""))) == []
