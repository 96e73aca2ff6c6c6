"""Conversion between numpy arrays and torch values. Strings are lists of `str`, BF16 has no numpy type."""

from __future__ import annotations

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from protocol.datatypes import DataType

# One argument or result of a model.
Value: TypeAlias = "torch.Tensor | list[str]"

DATA_TYPES = {
    torch.bool: DataType.BOOL,
    torch.uint8: DataType.UINT8,
    torch.uint16: DataType.UINT16,
    torch.uint32: DataType.UINT32,
    torch.uint64: DataType.UINT64,
    torch.int8: DataType.INT8,
    torch.int16: DataType.INT16,
    torch.int32: DataType.INT32,
    torch.int64: DataType.INT64,
    torch.float16: DataType.FP16,
    torch.float32: DataType.FP32,
    torch.float64: DataType.FP64,
    torch.bfloat16: DataType.BF16,
}
DTYPES = {data_type: dtype for dtype, data_type in DATA_TYPES.items()}


def host_tensor(array: NDArray[Any]) -> torch.Tensor:
    """A tensor in memory that the model may write to: the array's own, unless that is somebody else's."""
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def host_array(tensor: torch.Tensor) -> NDArray[Any]:
    """The array over the memory of a tensor of the host."""
    tensor = plain_tensor(tensor)
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The same values row by row in memory, as they are."""
    tensor = tensor.detach().contiguous()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor


def texts(array: NDArray[Any]) -> list[str]:
    found: list[str] = array.tolist()
    return found


def text_array(found: list[str]) -> NDArray[Any]:
    array = np.empty(len(found), dtype=np.object_)
    array[:] = [text.encode() for text in found]
    return array
