"""Typed tensor contents (`InferTensorContents`) to the raw binary layout.

Source: Open Inference Protocol, "Tensor Data"; the texts are Triton's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, shown_name
from protocol.messages import encode_bytes_elements


class _Kind(NamedTuple):
    """Which datatypes a content field serves; `named` is the one that errors name for it."""

    named: DataType
    serves: frozenset[DataType]


def _kind(named: DataType, *others: DataType) -> _Kind:
    return _Kind(named, frozenset((named, *others)))


_KINDS = {
    "bool_contents": _kind(DataType.BOOL),
    "int_contents": _kind(DataType.INT32, DataType.INT8, DataType.INT16),
    "int64_contents": _kind(DataType.INT64),
    "uint_contents": _kind(DataType.UINT32, DataType.UINT8, DataType.UINT16),
    "uint64_contents": _kind(DataType.UINT64),
    "fp32_contents": _kind(DataType.FP32),
    "fp64_contents": _kind(DataType.FP64),
    "bytes_contents": _kind(DataType.BYTES),
}


def encode_contents(contents: Any, name: str, datatype: DataType, model_name: str) -> bytes:
    """The raw layout of a tensor whose elements came in an InferTensorContents message.

    Integers of 8 and 16 bits come in wider fields and are cut to their width. No element at all is an empty tensor.

    Raises:
        InvalidArgument: elements in a field for another datatype, or in several fields.
    """
    data: bytes | None = None
    for field, values in contents.ListFields():  # those with elements, by field number
        kind = _KINDS.get(field.name)
        if kind is None:
            continue
        where = unexpected_contents(name, model_name)
        if data is not None:
            raise InvalidArgument(f"{where}, binary data was already supplied.")
        if datatype not in kind.serves:
            raise InvalidArgument(f"{where} of type '{kind.named.name}', expected datatype '{datatype.name}'")
        if datatype is DataType.BYTES:
            data = encode_bytes_elements(values)
        else:
            data = _encode_numbers(values, kind.named, datatype)
    return b"" if data is None else data


def unexpected_contents(name: str, model_name: str) -> str:
    """The start of the sentence that refuses contents."""
    return f"unexpected explicit tensor data for input tensor '{name}' for model '{shown_name(model_name)}'"


def _encode_numbers(values: Any, wide: DataType, datatype: DataType) -> bytes:
    array = np.array(values, dtype=wide.dtype)
    return array.astype(datatype.dtype.newbyteorder("<"), copy=False).tobytes()
