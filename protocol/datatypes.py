"""Tensor datatypes of the Open Inference Protocol (KServe v2) and of `config.pbtxt`.

One enumeration serves both: `name` is the protocol's word (`FP32`, `BYTES`), `value` the configuration's
(`TYPE_FP32`, `TYPE_STRING`). Source: reference section "Datatypes" of Triton's model configuration.
"""

from __future__ import annotations

import enum
from typing import Any

import ml_dtypes
import numpy as np


class DataType(enum.Enum):
    """A tensor element type: BOOL, UINT8 to UINT64, INT8 to INT64, FP16, FP32, FP64, BF16, and BYTES for texts.

    `name` is the protocol's word (`FP32`), `value` that of the configuration (`TYPE_FP32`). INVALID is for a
    configuration that says none.

    Attributes:
        number: the protobuf enum number in `model_config.proto`.
        itemsize: bytes per element on the wire; 0 for BYTES, whose elements carry their own length.
        dtype: the numpy dtype; object (of bytes) for BYTES, `ml_dtypes.bfloat16` for BF16.
    """

    number: int
    itemsize: int
    dtype: np.dtype[Any]

    INVALID = ("TYPE_INVALID", 0, 0, np.void)
    BOOL = ("TYPE_BOOL", 1, 1, np.bool_)
    UINT8 = ("TYPE_UINT8", 2, 1, np.uint8)
    UINT16 = ("TYPE_UINT16", 3, 2, np.uint16)
    UINT32 = ("TYPE_UINT32", 4, 4, np.uint32)
    UINT64 = ("TYPE_UINT64", 5, 8, np.uint64)
    INT8 = ("TYPE_INT8", 6, 1, np.int8)
    INT16 = ("TYPE_INT16", 7, 2, np.int16)
    INT32 = ("TYPE_INT32", 8, 4, np.int32)
    INT64 = ("TYPE_INT64", 9, 8, np.int64)
    FP16 = ("TYPE_FP16", 10, 2, np.float16)
    FP32 = ("TYPE_FP32", 11, 4, np.float32)
    FP64 = ("TYPE_FP64", 12, 8, np.float64)
    BYTES = ("TYPE_STRING", 13, 0, np.object_)
    BF16 = ("TYPE_BF16", 14, 2, ml_dtypes.bfloat16)

    def __new__(cls, value: str, number: int, itemsize: int, dtype: Any) -> DataType:
        member = object.__new__(cls)
        member._value_ = value
        member.number = number
        member.itemsize = itemsize
        member.dtype = np.dtype(dtype)
        return member

    __hash__ = object.__hash__  # the default hashes the name anew each time; members are singletons


# The protocol's names; INVALID is a value of the configuration only.
BY_PROTOCOL_NAME: dict[str, DataType] = {t.name: t for t in DataType if t is not DataType.INVALID}

_BY_DTYPE: dict[np.dtype[Any], DataType] = {t.dtype: t for t in BY_PROTOCOL_NAME.values()}


def from_numpy_dtype(dtype: np.dtype[Any]) -> DataType | None:
    """The datatype of a numpy array; strings and bytes of any width are BYTES; None where there is no match."""
    if dtype.kind in "SU":
        return DataType.BYTES
    return _BY_DTYPE.get(dtype.newbyteorder("="))
