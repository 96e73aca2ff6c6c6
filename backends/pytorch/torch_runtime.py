"""Device runtime through torch, with its memory allocator and without cupy.

The same code serves a CUDA device, which has not been seen running, and the host, by which it is tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.dlpack import from_dlpack

from backends.devices.errors import device_errors
from backends.devices.runtime import DeviceRuntime
from protocol.datatypes import DataType
from protocol.messages import Buffer
from protocol.tensors.device_tensor import DeviceBuffer
from protocol.tensors.dlpack import DeviceType, make_capsule

_HOST = (DeviceType.CPU, 0)


class TorchMemory:
    """`protocol.tensors.device_tensor.DeviceMemory` of one of the library's devices."""

    def __init__(self, device: torch.device) -> None:
        self.torch_device = device
        self.place = f"GPU {device.index}" if device.type == "cuda" else "the host"

    @property
    def device(self) -> tuple[int, int]:
        return (DeviceType.CUDA, self.torch_device.index) if self.torch_device.type == "cuda" else _HOST

    def read(self, address: int, byte_size: int) -> Buffer:
        with device_errors(self.place):
            copied = _bytes(address, byte_size, self.device).to("cpu", copy=True)
        return copied.numpy().data.toreadonly()

    def write(self, address: int, data: Buffer) -> None:
        array = np.frombuffer(data, np.uint8)
        self._copy(address, _bytes(array.ctypes.data, array.size, _HOST), array.size)

    def copy(self, target: int, source: int, byte_size: int) -> None:
        self._copy(target, _bytes(source, byte_size, self.device), byte_size)

    def _copy(self, target: int, source: torch.Tensor, byte_size: int) -> None:
        with device_errors(self.place):
            _bytes(target, byte_size, self.device).copy_(source)
            if self.torch_device.type == "cuda":
                torch.cuda.synchronize(self.torch_device)


class TorchRuntime(DeviceRuntime):
    def __init__(self, device: torch.device) -> None:
        self._memory = self.memory = TorchMemory(device)
        self._device = device
        self._is_cuda = device.type == "cuda"

    def allocate(self, byte_size: int, stream: Any) -> DeviceBuffer:
        with device_errors(self._memory.place), self.current(stream):
            held = torch.empty(byte_size, dtype=torch.uint8, device=self._device)
        return DeviceBuffer(self.memory, held.data_ptr(), byte_size, held)

    def new_stream(self, priority: int) -> Any:
        with device_errors(self._memory.place):
            if not self._is_cuda:
                return None
            return torch.cuda.Stream(self._device, priority=priority)  # type: ignore[no-untyped-call]

    def stream_number(self, stream: Any) -> int:
        return 0 if stream is None else int(stream.cuda_stream)

    def to_device(self, target: DeviceBuffer, source: NDArray[np.uint8], stream: Any) -> None:
        self._copy(_of(target), _bytes(source.ctypes.data, source.nbytes, _HOST), stream)

    def to_host(self, target: NDArray[np.uint8], source: DeviceBuffer, stream: Any) -> None:
        self._copy(_bytes(target.ctypes.data, source.byte_size, _HOST), _of(source), stream)

    def copy(self, target: DeviceBuffer, source: DeviceBuffer, stream: Any) -> None:
        self._copy(_of(target)[: source.byte_size], _of(source), stream)

    def _copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        with device_errors(self._memory.place), self.current(stream):
            target.copy_(source, non_blocking=True)

    def clear(self, target: DeviceBuffer, stream: Any) -> None:
        with device_errors(self._memory.place), self.current(stream):
            _of(target).zero_()

    def synchronize(self, stream: Any) -> None:
        if stream is not None:
            with device_errors(self._memory.place):
                stream.synchronize()

    @contextmanager
    def current(self, stream: Any) -> Iterator[None]:
        if stream is None:
            yield
        else:
            with torch.cuda.device(self._device), torch.cuda.stream(stream):
                yield


def _of(buffer: DeviceBuffer) -> torch.Tensor:
    return _bytes(buffer.address, buffer.byte_size, buffer.device)


def _bytes(address: int, byte_size: int, device: tuple[int, int]) -> torch.Tensor:
    """A tensor over memory that its user keeps."""
    return from_dlpack(make_capsule(address, DataType.UINT8, (byte_size,), device, None))
