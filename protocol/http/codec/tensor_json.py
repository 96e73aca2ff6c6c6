"""Tensor elements between JSON values and the protocol's raw binary layout.

FP16 and BF16 take part, which they do not in Triton: their JSON form is the number that they hold. Integers are
checked against their datatype's range, where Triton truncates. Source: reference sections "JSON data" and
"Outputs and response".
"""

from __future__ import annotations

import math
from array import array
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from protocol.datatypes import DataType
from protocol.errors import Internal, InvalidArgument, shown_name
from protocol.http.codec.json_text import MAX_NESTING, NESTING_TEXT, write_non_finite
from protocol.http.errors import BodyTooLarge
from protocol.messages import Buffer, Tensor, encode_bytes_elements

# Type codes of the standard library's arrays, which check ranges and lay elements out as the wire has them.
_TYPE_CODES = {
    DataType.BOOL: "B",
    DataType.UINT8: "B",
    DataType.UINT16: "H",
    DataType.UINT32: "I",
    DataType.UINT64: "Q",
    DataType.INT8: "b",
    DataType.INT16: "h",
    DataType.INT32: "i",
    DataType.INT64: "q",
    DataType.FP32: "f",
    DataType.FP64: "d",
}
OUTPUT_CODES: dict[DataType, Any] = {**_TYPE_CODES, DataType.BOOL: "?"}
_BYTES = DataType.BYTES  # to look it up takes long before Python 3.12
FLOATS = frozenset({DataType.FP16, DataType.BF16, DataType.FP32, DataType.FP64})
_HALF_FLOATS = frozenset({DataType.FP16, DataType.BF16})


def _allowed(datatype: DataType) -> tuple[frozenset[type], str]:
    if datatype is DataType.BYTES:
        return frozenset({str}), "attempt to access JSON non-string as string"
    if datatype is DataType.BOOL:
        return frozenset({bool}), "attempt to access JSON non-boolean as boolean"
    if datatype in FLOATS:
        return frozenset({int, float}), "attempt to access JSON non-number as double"
    if datatype.name.startswith("U"):
        return frozenset({int}), "attempt to access JSON non-unsigned-integer as unsigned-integer"
    return frozenset({int}), "attempt to access JSON non-signed-integer as signed-integer"


# The types of a datatype's elements as JSON has them, and what to say of others.
ALLOWED = {datatype: _allowed(datatype) for datatype in DataType}


class PackedElements:
    """Stands for the list of all elements of a `data` member where that is too long to be made (`packed_data`).

    Attributes:
        count: how many there are, of all depths.
        types: those among them.
    """

    __slots__ = ("count", "types")

    def __init__(self) -> None:
        self.count = 0
        self.types: set[type] = set()

    def raw(self) -> Buffer:
        """The raw layout of all of them, whose count and types are right.

        Raises:
            InvalidArgument: one is out of the datatype's range.
        """
        raise NotImplementedError


def decode_data(
    name: str, datatype: DataType, shape: tuple[int, ...], data: Any, *, model: str, max_size: int
) -> Buffer:
    """The raw layout of a JSON `data` member, flat or nested in any way, read depth-first.

    Raises:
        InvalidArgument: elements of another type or out of range, more or fewer than `shape` says, nested too deeply.
        BodyTooLarge: the tensor is larger than `max_size` bytes.
    """
    count = math.prod(shape)
    if count == 0:
        return b""  # whatever `data` holds: nothing of it would be read
    if count * datatype.itemsize > max_size:
        raise _too_large(name, count * datatype.itemsize, max_size)
    if type(data) is not list:
        if isinstance(data, PackedElements):
            return _checked(name, datatype, shape, count, data, model=model, max_size=max_size)
        raise InvalidArgument(
            f"Unable to parse 'data': attempt to access JSON non-array as array for input '{name}', "
            f"got {_json_type(type(data))}"
        )
    elements, types = data, set(map(type, data))
    if list in types:
        elements, types = flatten(data, types)
    if len(elements) != count:
        raise _other_count(name, shape, count, len(elements), model)
    if not types <= ALLOWED[datatype][0]:
        raise _other_types(name, datatype, types)
    if datatype is _BYTES:
        raw = encode_bytes_elements(elements)
        if len(raw) > max_size:
            raise _too_large(name, len(raw), max_size)
        return raw
    return pack(name, datatype, elements)


def _checked(
    name: str,
    datatype: DataType,
    shape: tuple[int, ...],
    count: int,
    data: PackedElements,
    *,
    model: str,
    max_size: int,
) -> Buffer:
    """As `decode_data`, of elements that are laid out already."""
    if data.count != count:
        raise _other_count(name, shape, count, data.count, model)
    if not data.types <= ALLOWED[datatype][0]:
        raise _other_types(name, datatype, data.types)
    raw = data.raw()
    if len(raw) > max_size:
        raise _too_large(name, len(raw), max_size)
    return raw


def _other_count(name: str, shape: tuple[int, ...], count: int, found: int, model: str) -> InvalidArgument:
    text = (
        "Unable to parse 'data': Shape does not match true shape of 'data' field"
        if found > count
        else "Failed to parse 'data' field: shape does not match true shape"
    )
    return InvalidArgument(
        f"{text} for input '{name}' for model '{shown_name(model)}': shape {list(shape)} holds {count} elements, "
        f"'data' has {found}"
    )


def _other_types(name: str, datatype: DataType, types: set[type]) -> InvalidArgument:
    allowed, text = ALLOWED[datatype]
    found = ", ".join(sorted(map(_json_type, types - allowed)))
    return InvalidArgument(
        f"Unable to parse 'data': {text} for input '{name}' of datatype {datatype.name}, got {found}"
    )


def encode_data(tensor: Tensor) -> list[Any] | msgspec.Raw:
    """The `data` member of an output: a flat array in row-major order, ready for msgspec.

    Raises:
        InvalidArgument: a BYTES element is not valid UTF-8, so only the binary format can carry it.
        Internal: the data is not what shape and datatype say; the model made it.
    """
    datatype = tensor.datatype
    code = OUTPUT_CODES.get(datatype)
    data = memoryview(tensor.data)
    if code is not None and 0 < data.nbytes == math.prod(tensor.shape) * datatype.itemsize:
        values: list[Any] = data.cast("B").cast(code).tolist()
    else:
        values = _elements(tensor)
    # One that is not finite leaves no finite sum; a sum may also be past the range, and is then looked at closely.
    if datatype not in FLOATS or math.isfinite(sum(values)) or all(map(math.isfinite, values)):
        return values
    return write_non_finite(values)


def _elements(tensor: Tensor) -> list[Any]:
    try:
        flat = tensor.as_numpy().reshape(-1)
    except InvalidArgument as exc:
        raise wrong_output(tensor, exc) from None
    if tensor.datatype is DataType.BYTES:
        return [text_of_element(tensor.name, index, element) for index, element in enumerate(flat)]
    if tensor.datatype in _HALF_FLOATS:
        with np.errstate(invalid="ignore"):  # a signalling NaN
            flat = flat.astype(np.float32)
    return flat.tolist()


def wrong_output(tensor: Tensor, error: InvalidArgument) -> Internal:
    return Internal(
        f"Failed to write 'data' field: output tensor shape does not match size of output for '{tensor.name}': {error}"
    )


def text_of_element(name: str, index: int, element: bytes) -> str:
    try:
        return element.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(
            f"sending BYTES data that is not valid UTF-8 via JSON is not supported (element {index} of output "
            f"'{name}'). Please use the binary data format for output: set its parameter 'binary_data' to true"
        ) from None


def _too_large(name: str, size: int, limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of {limit} "
        f"bytes. Use --http-max-input-size to increase the limit.",
        "max_input_size",
    )


def flatten(data: list[Any], types: set[type]) -> tuple[list[Any], set[type]]:
    """The leaves of nested lists in depth-first order, and the types among them, in time linear to what there is.
    `types` are those at the first depth."""
    depth = 1
    while types == {list}:  # the common case, a regular nest, goes level by level
        depth += 1
        _check_depth(depth)
        data = list(chain.from_iterable(data))
        types = set(map(type, data))
    if list not in types:
        return data, types
    leaves: list[Any] = []
    _append_leaves(data, leaves, depth)
    return leaves, set(map(type, leaves))


def _append_leaves(data: list[Any], leaves: list[Any], depth: int) -> None:
    _check_depth(depth)
    for item in data:
        if type(item) is list:
            _append_leaves(item, leaves, depth + 1)
        else:
            leaves.append(item)


def _check_depth(depth: int) -> None:
    if depth > MAX_NESTING:
        raise InvalidArgument(NESTING_TEXT)


def _json_type(type_: type) -> str:
    names: dict[type, str] = {dict: "object", list: "array", type(None): "null"}
    return names.get(type_, type_.__name__)


def pack(name: str, datatype: DataType, elements: list[Any]) -> Buffer:
    try:
        if datatype in _HALF_FLOATS:
            with np.errstate(over="ignore", invalid="ignore"):  # past the range is infinity, as for FP32
                halves = np.array(elements, np.float64).astype(datatype.dtype)
            return halves.tobytes()
        return memoryview(array(_TYPE_CODES[datatype], elements)).cast("B")
    except OverflowError:
        if datatype in FLOATS:
            raise InvalidArgument(
                f"Unable to parse 'data': a number for input '{name}' of datatype {datatype.name} is out of range"
            ) from None
        bounds = np.iinfo(datatype.dtype)
        value = next(element for element in elements if not bounds.min <= element <= bounds.max)
        raise InvalidArgument(
            f"Unable to parse 'data': value {str(value)[:40]} for input '{name}' is out of range of datatype "
            f"{datatype.name}, expected {bounds.min} to {bounds.max}"
        ) from None
