"""Host memory behind the names of torch and cupy: what of them the worker uses, with GPUs that are none.

Written to a model's folder as `torch.py` or `cupy.py`, it is what the model imports. The capsules say that their memory
is on a GPU; whoever believed it would crash, so it is seen that nothing else touches it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

CPU, CUDA = 1, 2
BFLOAT, SIGNED = 4, 0
GPUS = 2


class Header(ctypes.Structure):
    """The begin of a DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


def header(capsule: Any) -> Header:
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype = ctypes.c_void_p
    pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)
    return Header.from_address(pointer_of(capsule, b"dltensor"))


class Machine:
    """What was done, and where the running thread is."""

    def __init__(self) -> None:
        self.device = 0
        self.log: list[tuple[str, int | None]] = []
        self.is_available = True
        self.out_of_memory = False

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        if not 0 <= device < GPUS:
            raise RuntimeError(f"CUDA error: invalid device ordinal {device}")
        before, self.device = self.device, device
        try:
            yield
        finally:
            self.device = before

    def stream(self) -> Any:
        number = 0 if self.device == 0 else 4096 + self.device
        done = SimpleNamespace(cuda_stream=number, ptr=number)
        done.synchronize = lambda: self.log.append(("synchronize", number))
        return done

    def host(self, array: GpuArray) -> Any:
        if self.out_of_memory:
            raise RuntimeError("CUDA error: out of memory")
        self.log.append(("to_host", array.device_id))
        return array.memory.copy()


machine = Machine()


class GpuArray:
    """An array that says that it is on a GPU; bfloat16 as 16-bit integers."""

    def __init__(self, memory: Any, device_id: int, *, is_bfloat: bool = False) -> None:
        self.memory = memory
        self.device_id = device_id
        self.is_bfloat = is_bfloat

    def __dlpack__(self, stream: int | None = None) -> Any:
        if self.device_id != machine.device:
            raise BufferError("Can't export tensors on a different CUDA device index.")
        machine.log.append(("export", stream))
        capsule = self.memory.__dlpack__()
        tensor = header(capsule)
        tensor.device_type, tensor.device_id = CUDA, self.device_id
        if self.is_bfloat:
            tensor.code = BFLOAT
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CUDA, self.device_id)

    # As torch's
    def cpu(self) -> Any:
        return SimpleNamespace(numpy=lambda: machine.host(self))


class Host:
    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CPU, 0)


def from_dlpack(source: Any) -> GpuArray:
    """As cupy's and torch's: objects, or capsules."""
    capsule = source.__dlpack__() if hasattr(source, "__dlpack__") else source
    tensor = header(capsule)
    assert tensor.device_type == CUDA
    tensor.device_type = CPU
    if tensor.code == BFLOAT:
        tensor.code = SIGNED
    array = np.from_dlpack(Host(capsule))
    # The same memory as an array that may be passed on: numpy takes it for read-only.
    memory: Any = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
    memory.owner = array
    return GpuArray(np.ndarray(array.shape, array.dtype, memory), tensor.device_id)


def asarray(array: Any) -> GpuArray:
    return GpuArray(np.array(array), machine.device)


def asnumpy(array: GpuArray) -> Any:
    return machine.host(array)


def from_numpy(array: Any) -> Any:
    return SimpleNamespace(cuda=lambda: asarray(array))


utils = SimpleNamespace(dlpack=SimpleNamespace(from_dlpack=from_dlpack))
version = SimpleNamespace(cuda="12.9")
cuda = SimpleNamespace(
    is_available=lambda: machine.is_available,
    device=machine.on,
    Device=machine.on,
    current_stream=machine.stream,
    get_current_stream=machine.stream,
)
