"""`Tensor`, and the datatypes as models see them.

A received tensor is a view of the batch's memory: of the shared segment, or of the frame's body. Whoever holds the
tensor or its array holds that memory; `batch.BatchMemory` tells the server when a model holds it after `execute`.
"""

from __future__ import annotations

import struct
from typing import Any, Union

import numpy as np

from . import device, dlpack
from .errors import TritonModelException
from .frames import DATATYPE_BF16, DATATYPE_BYTES

Array = Any  # np.ndarray[Any, Any] is no type at run time in the oldest Python that runs this
Raw = Union[bytes, memoryview]

NUMPY_TYPES: dict[int, type] = {
    1: np.bool_,
    2: np.uint8,
    3: np.uint16,
    4: np.uint32,
    5: np.uint64,
    6: np.int8,
    7: np.int16,
    8: np.int32,
    9: np.int64,
    10: np.float16,
    11: np.float32,
    12: np.float64,
    DATATYPE_BYTES: np.object_,
}
TYPE_NAMES = {
    "TYPE_BOOL": 1,
    "TYPE_UINT8": 2,
    "TYPE_UINT16": 3,
    "TYPE_UINT32": 4,
    "TYPE_UINT64": 5,
    "TYPE_INT8": 6,
    "TYPE_INT16": 7,
    "TYPE_INT32": 8,
    "TYPE_INT64": 9,
    "TYPE_FP16": 10,
    "TYPE_FP32": 11,
    "TYPE_FP64": 12,
    "TYPE_STRING": DATATYPE_BYTES,
}
_DTYPES = {number: np.dtype(kind) for number, kind in NUMPY_TYPES.items()}
_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}
_BF16_STORAGE = np.dtype(np.uint16)
_BF16_HELD = np.dtype(np.int16)  # on a GPU, see `device`
_CHEAP_COPY = 4096  # bytes; to make a view takes as long


class Tensor:
    """A named array, on the CPU unless it is a `GpuTensor`.

    Received tensors may be written to in place (nobody else reads them), and may be kept after `execute`.
    """

    __slots__ = ("_array", "_memory", "_name", "_number", "_offset", "_shape", "_size")

    # Of a received tensor: the whole batch's bytes, and where in them this one begins; None of one that a model made.
    _memory: Array | None

    def __init__(self, name: str, numpy_array: Array) -> None:
        _check_name(name)
        if not isinstance(numpy_array, np.ndarray):
            raise TypeError(f"Tensor '{name}': expected a numpy.ndarray, found type {type(numpy_array)}")
        dtype = numpy_array.dtype
        number = _NUMBERS.get(dtype, 0)
        if not number:
            number, dtype, numpy_array = _convertible(numpy_array)
        self._set(name, number, np.asarray(numpy_array, dtype=dtype, order="C"))

    def _set(self, name: str, number: int, array: Array) -> None:
        self._name = name
        self._number = number
        self._shape = array.shape
        self._memory = None
        self._offset = 0
        self._size = 0
        self._array = array

    def name(self) -> str:
        return self._name

    def triton_dtype(self) -> int:
        """The number of the DataType in Triton's model configuration."""
        return self._number

    def shape(self) -> list[int]:
        return list(self._shape)

    def is_cpu(self) -> bool:
        return True

    def as_numpy(self) -> Array:
        """The elements; a BYTES tensor gives an object array of bytes."""
        if self._number == DATATYPE_BF16:
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        if self._array is None:
            if self._number == DATATYPE_BYTES:
                self._array = decode_elements(self._received_bytes()).reshape(self._shape)
            else:
                self._array = self._view(_DTYPES[self._number])
        return self._array

    def to_dlpack(self) -> Any:
        """A DLPack capsule over the same memory, which it keeps alive."""
        if self._number == DATATYPE_BYTES:
            raise TritonModelException("DLPack does not have support for string tensors.")
        if self._array is None:
            self._array = self._view(_DTYPES.get(self._number, _BF16_STORAGE))
        capsule = self._array.__dlpack__()
        if self._number == DATATYPE_BF16:
            dlpack.relabel(capsule, dlpack.BFLOAT)
        return capsule

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CPU, 0)

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """A tensor over the memory of a DLPack capsule, or of an object with `__dlpack__` and `__dlpack_device__`; on
        the GPU where that is."""
        _check_name(name)
        if dlpack.device_of(tensor)[0] == dlpack.CUDA:
            memory, layout = device.adopt(tensor)
            return GpuTensor._over(memory, name, layout.number, layout.shape)
        array, is_bfloat = dlpack.to_array(tensor)
        number = DATATYPE_BF16 if is_bfloat else _NUMBERS.get(array.dtype, 0)
        if not number:
            raise TritonModelException("NumPy dtype is not supported.")
        made = Tensor.__new__(Tensor)
        made._set(name, number, array)
        return made

    def _raw(self) -> Raw:
        """The protocol's raw layout of the elements; a view of them where a copy would cost."""
        array = self._array
        if self._number == DATATYPE_BYTES:
            return self._received_bytes() if self._memory is not None else encode_elements(array)
        if array is None:
            return self._received_bytes()
        return _raw_of(array)

    def _view(self, dtype: Any) -> Array:
        if not self._size:
            return np.empty(self._shape, dtype)
        return np.ndarray(self._shape, dtype, self._memory, self._offset)

    def _received_bytes(self) -> memoryview:
        assert self._memory is not None
        return memoryview(self._memory[self._offset : self._offset + self._size])


class GpuTensor(Tensor):
    """One in the memory of a GPU. Models see a Tensor whose `is_cpu` is false; it crosses to the server by the host."""

    __slots__ = ("_device_memory",)

    _device_memory: device.DeviceArray

    @classmethod
    def _over(cls, memory: device.DeviceArray, name: str, number: int, shape: Any) -> GpuTensor:
        made = cls.__new__(cls)
        made._name = name
        made._number = number
        made._shape = shape
        made._device_memory = memory
        return made

    def is_cpu(self) -> bool:
        return False

    def as_numpy(self) -> Array:
        raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")

    def to_dlpack(self) -> Any:
        """A DLPack capsule over the same memory, which it keeps alive; for the legacy default stream."""
        return self.__dlpack__()

    def __dlpack__(self, stream: Any = None) -> Any:
        capsule = self._device_memory.capsule(stream)
        if self._number == DATATYPE_BF16:
            dlpack.relabel(capsule, dlpack.BFLOAT)
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CUDA, self._device_memory.device_id)

    def _raw(self) -> Raw:
        return _raw_of(device.to_host(self._device_memory, f"Tensor '{self._name}'"))


def on_device(tensor: Tensor, device_id: int) -> Tensor:
    """A copy of a received tensor on that GPU; BYTES stay where they are. Raises TritonModelException."""
    if tensor._number == DATATYPE_BYTES:
        return tensor
    array = tensor._view(_DTYPES.get(tensor._number, _BF16_HELD))
    memory = device.to_device(array, device_id, f"Tensor '{tensor._name}'")
    return GpuTensor._over(memory, tensor._name, tensor._number, tensor._shape)


def received_tensor(name: str, number: int, shape: list[int], memory: Array, offset: int, size: int) -> Tensor:
    """An input. The server has checked that its bytes are there, and as many as shape and datatype need."""
    tensor = Tensor.__new__(Tensor)
    tensor._name = name
    tensor._number = number
    tensor._shape = shape
    tensor._memory = memory
    tensor._offset = offset
    tensor._size = size
    tensor._array = None
    return tensor


def encode_elements(array: Array) -> bytes:
    """The raw layout of a BYTES tensor; str is encoded as UTF-8, and what is neither goes through str()."""
    parts = []
    for element in array.reshape(-1).tolist():
        data = element if isinstance(element, bytes) else str(element).encode("utf-8")
        parts.append(struct.pack("<I", len(data)))
        parts.append(data)
    return b"".join(parts)


def decode_elements(buffer: bytes | bytearray | memoryview) -> Array:
    """The elements of a BYTES tensor's raw layout as a 1-D object array of bytes."""
    data = bytes(buffer)
    elements = []
    position = 0
    while position < len(data):
        start = position + 4
        if start > len(data):
            raise TritonModelException("Invalid bytes tensor data: incomplete length field")
        position = start + int.from_bytes(data[position:start], "little")
        if position > len(data):
            raise TritonModelException("Invalid bytes tensor data: string extends beyond buffer")
        elements.append(data[start:position])
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array


def _raw_of(array: Array) -> Raw:
    if array.nbytes <= _CHEAP_COPY:
        copied: bytes = array.tobytes()
        return copied
    return memoryview(array.reshape(-1).view(np.uint8))


def _convertible(array: Array) -> tuple[int, Any, Array]:
    """Datatype number, dtype to convert to, and array, of one whose dtype is no datatype's own."""
    dtype = array.dtype
    if dtype.kind == "S":
        return DATATYPE_BYTES, _DTYPES[DATATYPE_BYTES], array
    if dtype.name == "bfloat16":  # of ml_dtypes
        return DATATYPE_BF16, _BF16_STORAGE, array.view(_BF16_STORAGE)
    native = dtype.newbyteorder("=")
    number = _NUMBERS.get(native, 0)
    if not number:
        raise TritonModelException("NumPy dtype is not supported.")
    return number, native, array


def _check_name(name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"Tensor: name must be str, found type {type(name)}")
    if not name:
        raise TritonModelException("Tensor name cannot be an empty string.")
