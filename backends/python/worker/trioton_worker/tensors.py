"""`Tensor`, and its datatypes and memory.

A received tensor is a view of the batch's memory: of the shared segment, or of the frame's body. Whoever holds the
tensor or its array holds that memory; `batch.Batch` tells the server when a model holds it after `execute`.
"""

from __future__ import annotations

import struct
from typing import Any, Union

import numpy as np

from . import device, dlpack
from .arguments import to_text
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
_ndarray = np.ndarray
_BF16_STORAGE = np.dtype(np.uint16)
_BF16_HELD = np.dtype(np.int16)  # on a GPU, see `device`
CHEAP_COPY = 4096  # bytes; to make a view takes as long


class Tensor:
    """A named array, on the CPU unless it is a `GpuTensor`.

    Received tensors may be written to in place (nobody else reads them), and may be kept after `execute`.
    """

    __slots__ = ("_array", "_encoded", "_name", "_number", "_shape")

    # Of a received BYTES tensor: its raw layout, from which the array is made when it is asked for.
    _encoded: Array | None

    def __init__(self, name: str, numpy_array: Array, /) -> None:
        if type(name) is not str or not name:
            name = _checked_name(name)
        number = _NUMBERS.get(numpy_array.dtype, 0) if type(numpy_array) is _ndarray else 0
        if not (number and numpy_array.flags.c_contiguous):  # mostly they are
            number, numpy_array = _laid_out(name, numpy_array)
        self._name = name
        self._number = number
        self._shape = numpy_array.shape
        self._encoded = None
        self._array = numpy_array

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
            self._array = decode_elements(self._received_bytes()).reshape(self._shape)
        return self._array

    def to_dlpack(self) -> Any:
        """A DLPack capsule over the same memory, which it keeps alive."""
        if self._number == DATATYPE_BYTES:
            raise TritonModelException("DLPack does not have support for string tensors.")
        capsule = self._array.__dlpack__()
        if self._number == DATATYPE_BF16:
            dlpack.relabel(capsule, dlpack.BFLOAT)
        return capsule

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CPU, 0)

    @staticmethod
    def from_dlpack(name: str, tensor: Any, /) -> Tensor:
        """A tensor over the memory of a DLPack capsule, or of an object with `__dlpack__` and `__dlpack_device__`; on
        the GPU where that is."""
        name = _checked_name(name)
        if dlpack.device_of(tensor)[0] == dlpack.CUDA:
            memory, layout = device.adopt(tensor)
            return GpuTensor._over(memory, name, layout.number, layout.shape)
        array, is_bfloat = dlpack.to_array(tensor)
        number = DATATYPE_BF16 if is_bfloat else _NUMBERS.get(array.dtype, 0)
        if not number:
            raise TritonModelException("NumPy dtype is not supported.")
        return viewed_tensor(name, number, array.shape, array)

    def _raw(self) -> Raw:
        """The protocol's raw layout of the elements; a view of them where a copy would cost."""
        if self._number == DATATYPE_BYTES:
            return encode_elements(self._array) if self._encoded is None else self._received_bytes()
        array = self._array
        return array.tobytes() if array.nbytes <= CHEAP_COPY else _bytes_of(array)

    def _received_bytes(self) -> memoryview:
        return memoryview(self._encoded)  # type: ignore[arg-type]  # of a received one


class GpuTensor(Tensor):
    """One in the memory of a GPU. Models see a Tensor whose `is_cpu` is false; it crosses to the server by the host."""

    __slots__ = ("_device_memory",)

    _device_memory: device.DeviceArray

    @classmethod
    def _over(cls, memory: device.DeviceArray, name: str, number: int, shape: Any) -> GpuTensor:
        made = cls.__new__(cls)
        made._name = name
        made._number = number
        made._shape = tuple(shape)
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
        return _bytes_of(device.to_host(self._device_memory, f"Tensor '{self._name}'"))


def on_device(tensor: Tensor, device_id: int) -> Tensor:
    """A copy of a received tensor on that GPU; BYTES stay where they are. Raises TritonModelException."""
    if tensor._number == DATATYPE_BYTES:
        return tensor
    array = tensor._array.view(_BF16_HELD) if tensor._number == DATATYPE_BF16 else tensor._array
    memory = device.to_device(array, device_id, f"Tensor '{tensor._name}'")
    return GpuTensor._over(memory, tensor._name, tensor._number, tensor._shape)


def dtype_of(number: int) -> Any:
    """The dtype of a datatype's arrays; BF16, which numpy does not have, lies in 16-bit integers."""
    return _DTYPES.get(number, _BF16_STORAGE)


def viewed_tensor(name: str, number: int, shape: tuple[int, ...], array: Array) -> Tensor:
    """One over an array that has this shape, and the datatype's dtype."""
    tensor = Tensor.__new__(Tensor)
    tensor._name = name
    tensor._number = number
    tensor._shape = shape
    tensor._encoded = None
    tensor._array = array
    return tensor


def encoded_tensor(name: str, shape: tuple[int, ...], encoded: Array) -> Tensor:
    """A received BYTES tensor. The server has checked that there are as many elements as the shape has."""
    tensor = Tensor.__new__(Tensor)
    tensor._name = name
    tensor._number = DATATYPE_BYTES
    tensor._shape = shape
    tensor._encoded = encoded
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


def _bytes_of(array: Array) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))


def _laid_out(name: str, array: object) -> tuple[int, Array]:
    """Datatype number and C-contiguous array of what a model has given. Raises TypeError for what is no array."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"Tensor '{name}': expected a numpy.ndarray, found type {type(array)}")
    dtype = array.dtype
    number = _NUMBERS.get(dtype, 0)
    if not number:
        number, dtype, array = _convertible(array)
    return number, np.asarray(array, dtype=dtype, order="C")


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


def _checked_name(name: object) -> str:
    text = to_text(name, "Tensor: name")
    if not text:
        raise TritonModelException("Tensor name cannot be an empty string.")
    return text
