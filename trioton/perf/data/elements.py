"""Tensors from what files hold: lists of JSON, base64, raw bytes and arrays, checked against the model's inputs."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.datatypes import DataType
from protocol.errors import ServerError
from protocol.http.codec.tensor_json import decode_data
from protocol.messages import Buffer, Tensor, decode_bytes_elements
from trioton.perf.caller import DataError
from trioton.perf.data.inputs import MAX_TENSOR_BYTES, TensorSlot, check_size


def listed(slot: TensorSlot, shape: Sequence[int] | None, values: Any, place: str) -> Tensor:
    """A tensor of a JSON list, flat or nested, row-major. Without a shape that of the input, whose one variable dim is
    found from the number of elements.

    Raises:
        DataError: the elements are of another type, or more or fewer than the shape has.
    """
    values = values if isinstance(values, list) else [values]
    if slot.datatype is DataType.BOOL:
        values = _as_booleans(values)
    found = _checked_shape(slot, shape, _count(values), place)
    try:
        data = decode_data(slot.name, slot.datatype, found, values, model="", max_size=MAX_TENSOR_BYTES)
    except ServerError:
        raise DataError(_values_text(slot, found, values, place)) from None
    return Tensor(slot.name, slot.datatype, found, data)


def encoded(slot: TensorSlot, shape: Sequence[int] | None, text: Any, place: str) -> Tensor:
    """A tensor of base64, which holds it in the protocol's raw layout. Raises DataError."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise DataError(f"{place}: input '{slot.name}' expects base64 in its member 'b64'") from None
    return raw(slot, shape, data, place)


def raw(slot: TensorSlot, shape: Sequence[int] | None, data: Buffer, place: str) -> Tensor:
    """A tensor of bytes in the protocol's raw layout. Raises DataError: there are more or fewer than it has."""
    if slot.datatype is DataType.BYTES:
        try:
            count = len(decode_bytes_elements(data))
        except ServerError as error:
            raise DataError(
                f"{place}: input '{slot.name}' expects elements of a 4-byte little-endian length and its bytes: {error}"
            ) from None
    else:
        count, rest = divmod(len(data), slot.datatype.itemsize)
        if rest:
            raise DataError(
                f"{place}: input '{slot.name}' of datatype {slot.datatype.name} expects a multiple of "
                f"{slot.datatype.itemsize} bytes, got {len(data)}"
            )
    return Tensor(slot.name, slot.datatype, _checked_shape(slot, shape, count, place), data)


def of_array(slot: TensorSlot, array: NDArray[Any], place: str) -> Tensor:
    """A tensor over an array of one row. Raises DataError: it is of another shape or kind."""
    _checked_shape(slot, array.shape, array.size, place)
    if slot.datatype is DataType.BYTES:
        if array.dtype.kind not in "SUO":
            raise DataError(f"{place}: input '{slot.name}' expects texts, got numpy's {array.dtype}")
        return Tensor.from_numpy(slot.name, array)
    if not np.can_cast(array.dtype, slot.datatype.dtype, "same_kind"):
        raise DataError(f"{place}: input '{slot.name}' expects {slot.datatype.name}, got numpy's {array.dtype}")
    return Tensor.from_numpy(slot.name, array.astype(slot.datatype.dtype, copy=False))


def _checked_shape(slot: TensorSlot, shape: Sequence[int] | None, count: int, place: str) -> tuple[int, ...]:
    """The shape that so many elements have."""
    if shape is not None and not slot.fits(shape):
        raise DataError(f"{place}: input '{slot.name}' expects the shape {list(slot.dims)}, got {list(shape)}")
    found = tuple(slot.dims if shape is None else shape)
    if found.count(-1) == 1:
        others = math.prod(dim for dim in found if dim >= 0)
        found = tuple(count // others if dim == -1 and others else dim for dim in found)
    if -1 in found:
        raise DataError(
            f"{place}: input '{slot.name}' has variable dims {list(slot.dims)}: give its shape, beside its values "
            "or by --shape"
        )
    if math.prod(found) != count:
        raise DataError(
            f"{place}: input '{slot.name}' of shape {list(found)} expects {math.prod(found)} elements, got {count}"
        )
    check_size(slot, found)
    return found


def _count(values: Any) -> int:
    return (
        sum(map(_count, values))
        if isinstance(values, list) and any(type(v) is list for v in values)
        else (len(values) if isinstance(values, list) else 1)
    )


def _as_booleans(values: list[Any]) -> list[Any]:
    """0 and 1 in place of false and true, as perf_analyzer takes them."""
    return [
        _as_booleans(value) if type(value) is list else bool(value) if value in (0, 1) else value for value in values
    ]


def _values_text(slot: TensorSlot, shape: tuple[int, ...], values: list[Any], place: str) -> str:
    shown = str(values)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return f"{place}: input '{slot.name}' expects {slot.datatype.name} elements of shape {list(shape)}, got {shown}"
