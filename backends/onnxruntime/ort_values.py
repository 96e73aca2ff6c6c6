"""BF16 tensors of a session, which numpy cannot represent.

A BF16 array goes in as the bits of a UINT16 array with the ONNX type named beside it. The library offers no array of a
BF16 output either, so its elements are copied from the value's own memory.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
from numpy.typing import NDArray

from backends.onnxruntime.signature import ONNX_ELEMENT_TYPES
from protocol.datatypes import DataType

_BF16 = np.dtype(ml_dtypes.bfloat16)


def run_with_values(
    session: Any, output_names: Sequence[str], feed: Mapping[str, NDArray[Any]], run_options: Any
) -> list[NDArray[Any]]:
    """`session.run` for models with a BF16 input or output; inputs must be C-contiguous and no strings.

    Costs one copy of every BF16 output.
    """
    values = {name: to_value(array) for name, array in feed.items()}
    return [to_array(value) for value in session.run_with_ort_values(list(output_names), values, run_options)]


def to_value(array: NDArray[Any]) -> Any:
    """The library's value over an array of the host, which is C-contiguous and holds no strings."""
    if array.dtype == _BF16:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
            array.view(np.uint16), ONNX_ELEMENT_TYPES[DataType.BF16]
        )
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def to_array(value: Any) -> NDArray[Any]:
    """The array over a value on the host; of a BF16 one, a copy."""
    if value.data_type() != "tensor(bfloat16)":
        plain: NDArray[Any] = value.numpy()
        return plain
    shape = tuple(value.shape())
    size = math.prod(shape)
    if size == 0:
        return np.empty(shape, dtype=_BF16)
    memory = (ctypes.c_uint16 * size).from_address(value.data_ptr())
    return np.frombuffer(memory, dtype=_BF16).reshape(shape).copy()
