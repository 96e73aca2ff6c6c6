"""Device runtime interface: memory, streams and copies on one GPU. Whatever the server does on a device by itself goes
through here.

`backends.devices.cuda` is the only implementation; tests have another one in host memory.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.errors import Unavailable
from protocol.tensors.device_tensor import DeviceBuffer, DeviceMemory

# A stream, as the runtime that has made it knows it.
Stream: TypeAlias = Any


class DeviceRuntime(abc.ABC):
    """One GPU. Every call may come from any thread; a stream is for one thread at a time.

    Raises:
        Overloaded: the device, or the host, has no memory left.
        Unavailable: the device refuses.
    """

    memory: DeviceMemory

    @abc.abstractmethod
    def allocate(self, byte_size: int, stream: Stream) -> DeviceBuffer:
        """Memory to be used on this stream first; whoever drops it has waited for every other one that used it."""

    @abc.abstractmethod
    def new_stream(self, priority: int) -> Stream:
        """A stream that waits for no other one. A lower priority goes first; 0 is the lowest."""

    @abc.abstractmethod
    def stream_number(self, stream: Stream) -> int:
        """Its `cudaStream_t`, for libraries that are told a stream."""

    @abc.abstractmethod
    def to_device(self, target: DeviceBuffer, source: NDArray[np.uint8], stream: Stream) -> None:
        """Enqueue a copy of as many bytes from the host. Both sides of any copy must stay until the stream was waited
        for."""

    @abc.abstractmethod
    def to_host(self, target: NDArray[np.uint8], source: DeviceBuffer, stream: Stream) -> None:
        """Enqueue a copy to the host."""

    @abc.abstractmethod
    def copy(self, target: DeviceBuffer, source: DeviceBuffer, stream: Stream) -> None:
        """Enqueue a copy from this device, or another, to this device."""

    @abc.abstractmethod
    def clear(self, target: DeviceBuffer, stream: Stream) -> None:
        """Enqueue zeros, for all of it."""

    def capture(self, work: Callable[[], None], stream: Stream) -> Callable[[], None]:
        """What `work` enqueues on the stream, as a graph: nothing of it runs now, and each call of what is returned
        enqueues it again. The memory that it uses must stay. The stream must be idle."""
        raise Unavailable("this device has no graphs")

    @abc.abstractmethod
    def synchronize(self, stream: Stream) -> None:
        """Wait until all that is enqueued has ended."""

    @abc.abstractmethod
    def current(self, stream: Stream) -> AbstractContextManager[None]:
        """Makes device and stream the running thread's current ones, for libraries that look there."""
