"""Requests and responses as a client writes and reads them, independent of the codec under test."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocol.datatypes import DataType

DATATYPES = [t for t in DataType if t is not DataType.INVALID]


def raw(datatype: DataType, array: NDArray[Any]) -> bytes:
    """The raw layout of an array."""
    if datatype is DataType.BYTES:
        return b"".join(len(e).to_bytes(4, "little") + e for e in array.reshape(-1).tolist())
    return array.tobytes()


def json_values(datatype: DataType, array: NDArray[Any]) -> list[Any]:
    """The array as lists of what JSON has, nested as its shape says."""
    if datatype in (DataType.FP16, DataType.BF16):
        with np.errstate(invalid="ignore"):  # a signalling NaN
            array = array.astype(np.float32)
    if datatype is DataType.BYTES:
        texts = np.empty(array.shape, object)
        texts.reshape(-1)[:] = [element.decode() for element in array.reshape(-1).tolist()]
        array = texts
    values: list[Any] = np.atleast_1d(array).tolist()
    return values


def infer_body(tensors: list[tuple[str, DataType, NDArray[Any], bool]], **members: Any) -> tuple[bytes, int]:
    """A request body and the length of its JSON part; each tensor is (name, datatype, array, whether binary)."""
    inputs: list[dict[str, Any]] = []
    tail = b""
    for name, datatype, array, binary in tensors:
        entry: dict[str, Any] = {"name": name, "datatype": datatype.name, "shape": list(array.shape)}
        if binary:
            data = raw(datatype, array)
            entry["parameters"] = {"binary_data_size": len(data)}
            tail += data
        else:
            entry["data"] = json_values(datatype, array)
        inputs.append(entry)
    text = json.dumps({"inputs": inputs, **members}).encode()
    return text + tail, len(text)


def read_outputs(text: bytes, tail: bytes) -> dict[str, NDArray[Any]]:
    """The outputs of a response, by name."""
    outputs: dict[str, NDArray[Any]] = {}
    for entry in json.loads(text)["outputs"]:
        datatype = DataType[entry["datatype"]]
        if "data" in entry:
            values = [v.encode() for v in entry["data"]] if datatype is DataType.BYTES else entry["data"]
            array = np.empty(len(values), datatype.dtype)
            array[:] = values
        else:
            size = entry["parameters"]["binary_data_size"]
            data, tail = tail[:size], tail[size:]
            array = _from_raw(datatype, data)
        outputs[entry["name"]] = array.reshape(entry["shape"])
    assert tail == b""
    return outputs


def _from_raw(datatype: DataType, data: bytes) -> NDArray[Any]:
    if datatype is not DataType.BYTES:
        return np.frombuffer(data, datatype.dtype)
    elements: list[bytes] = []
    while data:
        size = int.from_bytes(data[:4], "little")
        elements.append(data[4 : 4 + size])
        data = data[4 + size :]
    array = np.empty(len(elements), object)
    array[:] = elements
    return array


def shapes() -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, 4), max_size=4).map(tuple)


@st.composite
def arrays(draw: st.DrawFn, *, text: bool = False) -> tuple[DataType, NDArray[Any]]:
    """An array of any datatype; BYTES elements are UTF-8 where `text` is set."""
    datatype = draw(st.sampled_from(DATATYPES))
    shape = draw(shapes())
    count = int(np.prod(shape, dtype=int))
    if datatype is DataType.BYTES:
        element = st.text(max_size=5).map(str.encode) if text else st.binary(max_size=5)
        values = draw(st.lists(element, min_size=count, max_size=count))
        array = np.empty(count, object)
        array[:] = values
        return datatype, array.reshape(shape)
    if datatype is DataType.BOOL:
        bits = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        return datatype, np.array(bits, np.bool_).reshape(shape)
    # Any bit pattern: integers of the whole range, floats with infinities and NaN.
    data = draw(st.binary(min_size=count * datatype.itemsize, max_size=count * datatype.itemsize))
    return datatype, np.frombuffer(data, datatype.dtype).reshape(shape)


def same(datatype: DataType, left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Equal in shape and in value, NaN being equal to NaN."""
    if left.shape != right.shape:
        return False
    if datatype in (DataType.FP16, DataType.BF16, DataType.FP32, DataType.FP64):
        with np.errstate(invalid="ignore"):  # a signalling NaN
            return bool(np.array_equal(left.astype(np.float64), right.astype(np.float64), equal_nan=True))
    return bool(np.array_equal(left, right))
