"""A device in host memory: what it is told to copy it copies when it is waited for, so a wait that lacks shows.

It knows which of its memory is there, and refuses to touch any other.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.devices.pinned import Pinned
from backends.devices.runtime import DeviceRuntime
from protocol.errors import Overloaded, Unavailable
from protocol.messages import Buffer, Tensor
from protocol.tensors.device_tensor import DeviceBuffer, DeviceTensor, device_tensor
from protocol.tensors.dlpack import DeviceType


class Block:
    """Memory that counts itself, aligned as a device's is."""

    def __init__(self, size: int, live: dict[int, int]) -> None:
        self._memory = ctypes.create_string_buffer(size + 256)
        begin = ctypes.addressof(self._memory)
        self.ptr = begin + -begin % 256
        self._live = live
        live[self.ptr] = size

    def __del__(self) -> None:
        self._live.pop(self.ptr, None)


class HostMemory:
    """`reads` has the threads that have copied out of it. One that `is_shared` has memory of others, too."""

    def __init__(self, device: tuple[int, int], live: dict[int, int]) -> None:
        self.device = device
        self.reads: list[threading.Thread] = []
        self.is_shared = False
        self._live = live

    def read(self, address: int, byte_size: int) -> Buffer:
        self.check(address, byte_size)
        self.reads.append(threading.current_thread())
        return memoryview(ctypes.string_at(address, byte_size))

    def write(self, address: int, data: Buffer) -> None:
        data = bytes(data)
        self.check(address, len(data))
        ctypes.memmove(address, data, len(data))

    def copy(self, target: int, source: int, byte_size: int) -> None:
        self.check(target, byte_size)
        ctypes.memmove(target, source, byte_size)

    def check(self, address: int, byte_size: int) -> None:
        if self.is_shared:
            return
        if not any(begin <= address and address + byte_size <= begin + size for begin, size in self._live.items()):
            raise Unavailable(f"no memory of the device: {byte_size} bytes at {address:#x}")


def on_device(name: str, array: NDArray[Any], device: tuple[int, int] = (DeviceType.CUDA, 0)) -> DeviceTensor:
    """A tensor that lies on a device of its own, complete."""
    live: dict[int, int] = {}
    memory = HostMemory(device, live)
    host = Tensor.from_numpy(name, array)
    block = Block(host.byte_size, live)
    memory.write(block.ptr, host.data)
    buffer = DeviceBuffer(memory, block.ptr, host.byte_size, block)
    return device_tensor(name, host.datatype, host.shape, buffer)


def reads_of(tensor: Tensor) -> int:
    """How often the memory of a tensor was read by the host."""
    assert isinstance(tensor, DeviceTensor)
    assert isinstance(tensor.buffer.memory, HostMemory)
    return len(tensor.buffer.memory.reads)


@dataclass(eq=False)
class HostStream:
    priority: int = 0
    copies: list[tuple[int, int, int]] = field(default_factory=list)


class HostRuntime(DeviceRuntime):
    """`free_bytes` is what can be allocated; `copied` has the size of each copy, `waits` how often it was waited. One
    that `is_eager` copies at once: for libraries that compute on the host, and know no streams."""

    def __init__(
        self, device_id: int = 0, pool_bytes: int = 0, has_peers: bool = True, *, device_type: int = DeviceType.CUDA
    ) -> None:
        self.live: dict[int, int] = {}
        self.host = HostMemory((device_type, device_id), self.live)
        self.memory = self.host
        self.pool_bytes = pool_bytes
        self.free_bytes = 1 << 30
        self.copied: list[int] = []
        self.cleared: list[NDArray[np.uint8]] = []  # what such copies read
        self.waits = 0
        self.is_eager = False
        self.is_lost = False
        self.current_in: dict[int, HostStream] = {}

    def allocate(self, byte_size: int, stream: HostStream) -> DeviceBuffer:
        if sum(self.live.values()) + byte_size > self.free_bytes:
            raise Overloaded(f"GPU {self.memory.device[1]}: no memory left: out of memory")
        block = Block(byte_size, self.live)
        return DeviceBuffer(self.memory, block.ptr, byte_size, block)

    def new_stream(self, priority: int) -> HostStream:
        return HostStream(priority)

    def stream_number(self, stream: HostStream) -> int:
        return id(stream)

    def to_device(self, target: DeviceBuffer, source: NDArray[np.uint8], stream: HostStream) -> None:
        self.host.check(target.address, source.nbytes)
        self._enqueue(target.address, source.ctypes.data, source.nbytes, stream)

    def to_host(self, target: NDArray[np.uint8], source: DeviceBuffer, stream: HostStream) -> None:
        self.host.check(source.address, source.byte_size)
        self._enqueue(target.ctypes.data, source.address, source.byte_size, stream)

    def copy(self, target: DeviceBuffer, source: DeviceBuffer, stream: HostStream) -> None:
        self.host.check(target.address, source.byte_size)
        self._enqueue(target.address, source.address, source.byte_size, stream)

    def clear(self, target: DeviceBuffer, stream: HostStream) -> None:
        zeros = np.zeros(target.byte_size, np.uint8)
        self.cleared.append(zeros)
        self.to_device(target, zeros, stream)

    def _enqueue(self, target: int, source: int, byte_size: int, stream: HostStream) -> None:
        self.copied.append(byte_size)
        if self.is_eager:
            ctypes.memmove(target, source, byte_size)
        else:
            stream.copies.append((target, source, byte_size))

    def synchronize(self, stream: HostStream) -> None:
        self.waits += 1
        copies, stream.copies = stream.copies, []
        if self.is_lost:
            raise Unavailable("GPU 0: the device is lost")
        for target, source, byte_size in copies:
            ctypes.memmove(target, source, byte_size)

    @contextmanager
    def current(self, stream: HostStream) -> Iterator[None]:
        thread = threading.get_ident()
        self.current_in[thread] = stream
        try:
            yield
        finally:
            del self.current_in[thread]


class Pins:
    """Makes "pinned" memory, and counts what there is of it."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self.made = 0

    def __call__(self, byte_size: int) -> Pinned:
        self.made += 1
        return Block(byte_size, self.live)

    @property
    def byte_size(self) -> int:
        return sum(self.live.values())
