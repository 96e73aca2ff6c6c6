"""DLPack: exchange of tensors with other libraries without a copy, in host or device memory.

numpy knows neither bfloat16 nor other devices than the host, so the capsules are made here. Structures: dlpack.h,
version 0 ("dltensor" capsules, which every library still takes). Source: "Python Specification for DLPack".
"""

from __future__ import annotations

import ctypes
import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.datatypes import DataType


class DeviceType(enum.IntEnum):
    """The DLPack device types used here."""

    CPU = 1
    CUDA = 2
    CUDA_HOST = 3


_BOOL = 6
_CODES: dict[DataType, tuple[int, int]] = {
    DataType.BOOL: (_BOOL, 8),
    DataType.UINT8: (1, 8),
    DataType.UINT16: (1, 16),
    DataType.UINT32: (1, 32),
    DataType.UINT64: (1, 64),
    DataType.INT8: (0, 8),
    DataType.INT16: (0, 16),
    DataType.INT32: (0, 32),
    DataType.INT64: (0, 64),
    DataType.FP16: (2, 16),
    DataType.FP32: (2, 32),
    DataType.FP64: (2, 64),
    DataType.BF16: (4, 16),
}
_DATATYPES = {code: datatype for datatype, code in _CODES.items()}


class _Tensor(ctypes.Structure):
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


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_NAME = b"dltensor"
_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
# Of a capsule that is just being freed only the address may be passed on.
_is_unused = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_freed_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_hold = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", ctypes.pythonapi))
_drop = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_DecRef", ctypes.pythonapi))


class _Export:
    """What a capsule points to, kept alive by the reference that its structure counts, until the consumer deletes
    it."""

    def __init__(self, owner: object, shape: Sequence[int]) -> None:
        self.owner = owner
        self.shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        self.managed = _Managed()


def _delete(address: int) -> None:
    managed = _Managed.from_address(address)
    _drop(ctypes.cast(managed.context, ctypes.py_object).value)


def _destruct(capsule: int) -> None:
    """Destructor of a capsule that nobody has consumed."""
    if _is_unused(capsule, _NAME):
        _delete(_freed_pointer(capsule, _NAME))


_deleter = _DELETER(_delete)
_destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destruct)


def make_capsule(address: int, datatype: DataType, shape: Sequence[int], device: tuple[int, int], owner: object) -> Any:
    """A capsule over the elements that lie at an address, row-major; `owner` keeps them while it is used.

    Raises:
        BufferError: BYTES, which has no such form.
    """
    if datatype not in _CODES:
        raise BufferError(f"DLPack has no elements of datatype {datatype.name}")
    export = _Export(owner, shape)
    managed = export.managed
    tensor = managed.tensor
    tensor.data = address
    tensor.device_type, tensor.device_id = device
    tensor.ndim = len(shape)
    tensor.code, tensor.bits = _CODES[datatype]
    tensor.lanes = 1
    tensor.shape = ctypes.cast(export.shape, ctypes.POINTER(ctypes.c_int64))
    managed.context = id(export)
    managed.deleter = ctypes.cast(_deleter, ctypes.c_void_p).value
    _hold(export)
    destructor = ctypes.cast(_destructor, ctypes.c_void_p).value
    return _new_capsule(ctypes.addressof(managed), _NAME, destructor)


@dataclass(frozen=True, slots=True)
class Layout:
    """Elements at an address, row-major. `owner` keeps them."""

    address: int
    datatype: DataType
    shape: tuple[int, ...]
    device: tuple[int, int]
    owner: object

    @property
    def byte_size(self) -> int:
        return math.prod(self.shape) * self.datatype.itemsize


def layout_of(source: Any, stream: int | None = None) -> Layout:
    """Where the elements of an array of any library lie, which it keeps there for as long as the result lives. They may
    be used on that stream.

    Raises:
        BufferError: they do not follow each other row by row, or have no datatype in the protocol.
    """
    export: Callable[..., object] = source.__dlpack__
    capsule = export() if stream is None else export(stream=stream)
    tensor = _Managed.from_address(_pointer(capsule, _NAME)).tensor
    shape = tuple(tensor.shape[: tensor.ndim])
    datatype = _DATATYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if datatype is None:
        raise BufferError(f"DLPack's type {tensor.code} of {tensor.bits} bits has no datatype in the protocol")
    if tensor.strides and not _is_row_major(shape, tensor.strides[: tensor.ndim]):
        raise BufferError(f"the elements of shape {list(shape)} do not follow each other row by row")
    address = (tensor.data or 0) + tensor.byte_offset
    return Layout(address, datatype, shape, (tensor.device_type, tensor.device_id), capsule)


def _is_row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    if 0 in shape:
        return True
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
