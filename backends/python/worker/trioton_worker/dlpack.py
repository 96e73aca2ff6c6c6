"""DLPack through numpy, with bfloat16 (which numpy lacks) as relabelled 16-bit integers.

Structures: dlpack.h, version 0 ("dltensor" capsules, which every library still gives when no version is asked for).
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from .errors import TritonModelException
from .frames import DATATYPE_BF16

CPU, CUDA, CUDA_HOST = 1, 2, 3
SIGNED, UNSIGNED, FLOAT, BFLOAT, BOOL = 0, 1, 2, 4, 6
# Datatype numbers by code and bits.
_NUMBERS = {
    (BOOL, 8): 1,
    **{(UNSIGNED, 8 << power): 2 + power for power in range(4)},
    **{(SIGNED, 8 << power): 6 + power for power in range(4)},
    **{(FLOAT, 16 << power): 10 + power for power in range(3)},
    (BFLOAT, 16): DATATYPE_BF16,
}
_CAPSULE_NAME = b"dltensor"
_NO_SUCH_OBJECT = (
    "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
    "`__dlpack_device__` attributes"
)


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Layout(NamedTuple):
    """What a capsule says of its elements."""

    number: int  # of the datatype
    shape: list[int]

    @property
    def is_bfloat(self) -> bool:
        return self.number == DATATYPE_BF16


class Capsule:
    """What numpy, and others, want around a bare capsule."""

    def __init__(self, capsule: Any, device: tuple[int, int]) -> None:
        self._capsule = capsule
        self._device = device

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def relabel(capsule: Any, code: int) -> None:
    """Change the type code of a capsule's elements in place."""
    _tensor_of(capsule).code = code


def is_capsule(source: Any) -> bool:
    return type(source).__name__ == "PyCapsule"


def device_of(source: Any) -> tuple[int, int]:
    """Type and id of the device that a capsule, or an object that makes one, has its memory on."""
    if is_capsule(source):
        tensor = _tensor_of(source)
        device_type, device_id = tensor.device_type, tensor.device_id
    elif hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__"):
        device_type, device_id = source.__dlpack_device__()
    else:
        raise TritonModelException(_NO_SUCH_OBJECT)
    if device_type not in (CPU, CUDA, CUDA_HOST):
        raise TritonModelException(f"DLDevice type {int(device_type)} is not support by Python backend.")
    return int(device_type), int(device_id)


def layout_of(capsule: Any) -> Layout:
    """Raises TritonModelException where its elements do not follow each other, or are of no datatype."""
    tensor = _tensor_of(capsule)
    _check_contiguous(tensor)
    number = _NUMBERS.get((tensor.code, tensor.bits), 0) if tensor.lanes == 1 else 0
    if not number:
        raise TritonModelException(
            f"DLPack data type with code {tensor.code}, {tensor.bits} bits and {tensor.lanes} lanes is not supported."
        )
    return Layout(number, tensor.shape[: tensor.ndim] if tensor.ndim else [])


def to_array(source: Any) -> tuple[Any, bool]:
    """The array over the source's memory, which is the host's, and whether its 16-bit elements are bfloat16."""
    capsule = source if is_capsule(source) else source.__dlpack__()
    tensor = _tensor_of(capsule)
    _check_contiguous(tensor)
    is_bfloat = (tensor.code, tensor.bits, tensor.lanes) == (BFLOAT, 16, 1)
    if is_bfloat:
        tensor.code = UNSIGNED
    return _writeable(np.from_dlpack(Capsule(capsule, (tensor.device_type, tensor.device_id)))), is_bfloat


def _writeable(array: Any) -> Any:
    """The same memory as an array that may be written to and passed on: numpy takes it for read-only, because
    capsules of this version cannot say that it is not."""
    if array.flags.writeable or not array.size:
        return array
    memory = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
    memory.owner = array
    return np.ndarray(array.shape, array.dtype, memory)


def _tensor_of(capsule: Any) -> _DLTensor:
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype = ctypes.c_void_p
    pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)
    try:
        return _DLTensor.from_address(pointer_of(capsule, _CAPSULE_NAME))
    except ValueError:
        raise TritonModelException("The DLPack capsule was used before, or has an unsupported version.") from None


def _check_contiguous(tensor: _DLTensor) -> None:
    if not _is_contiguous(tensor):
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
        )


def _is_contiguous(tensor: _DLTensor) -> bool:
    if not tensor.strides or 0 in tensor.shape[: tensor.ndim]:
        return True
    expected = 1
    for axis in reversed(range(tensor.ndim)):
        if tensor.shape[axis] != 1 and tensor.strides[axis] != expected:
            return False
        expected *= tensor.shape[axis]
    return True
