"""DLPack through numpy, which has no bfloat16: its tensors pass as 16-bit integers under another label.

Structures: dlpack.h, version 0 ("dltensor" capsules, which every library still gives when no version is asked for).
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .errors import TritonModelException

CPU, CUDA, CUDA_HOST = 1, 2, 3
UNSIGNED, BFLOAT = 1, 4
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


class _Capsule:
    """What numpy wants around a bare capsule."""

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


def to_array(source: Any) -> tuple[Any, bool]:
    """The array over the source's memory, and whether its 16-bit elements are bfloat16."""
    if type(source).__name__ == "PyCapsule":
        capsule = source
    elif hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__"):
        _check_device(source.__dlpack_device__()[0])
        capsule = source.__dlpack__()
    else:
        raise TritonModelException(_NO_SUCH_OBJECT)
    tensor = _tensor_of(capsule)
    _check_device(tensor.device_type)
    if not _is_contiguous(tensor):
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
        )
    is_bfloat = (tensor.code, tensor.bits, tensor.lanes) == (BFLOAT, 16, 1)
    if is_bfloat:
        tensor.code = UNSIGNED
    return _writeable(np.from_dlpack(_Capsule(capsule, (tensor.device_type, tensor.device_id)))), is_bfloat


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


def _check_device(device_type: int) -> None:
    if device_type == CUDA:
        raise TritonModelException("GPU tensors are not supported by this server yet; move it to the CPU.")
    if device_type not in (CPU, CUDA_HOST):
        raise TritonModelException(f"DLDevice type {int(device_type)} is not support by Python backend.")


def _is_contiguous(tensor: _DLTensor) -> bool:
    if not tensor.strides or 0 in tensor.shape[: tensor.ndim]:
        return True
    expected = 1
    for axis in reversed(range(tensor.ndim)):
        if tensor.shape[axis] != 1 and tensor.strides[axis] != expected:
            return False
        expected *= tensor.shape[axis]
    return True
