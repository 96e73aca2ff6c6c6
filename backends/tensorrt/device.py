"""One NVIDIA GPU: its memory, streams and events, by cupy. Not seen running.

For the thread that has called `use`. cupy's memory pool is not used: what an engine had is free when it is unloaded.
"""

from __future__ import annotations

import math
from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from backends.devices.pinned import PinnedPool
from protocol.errors import Unavailable

CudaError: type[Exception] = cupy.cuda.runtime.CUDARuntimeError


class Device:
    """A GPU by its number. `pinned` is the server's pool of pinned memory.

    Raises:
        Unavailable: there is no such GPU, or the driver does not work.
    """

    def __init__(self, id: int, pinned: PinnedPool, *, model: str) -> None:
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except CudaError as error:
            raise Unavailable(f"model '{model}' needs an NVIDIA GPU, but CUDA finds none: {error}") from error
        if not 0 <= id < count:
            raise Unavailable(f"model '{model}' needs the NVIDIA GPU {id}, but CUDA finds {count}")
        self.id = id
        self._pinned = pinned
        self._device = cupy.cuda.Device(id)

    def use(self) -> None:
        """Make it the calling thread's."""
        self._device.use()

    @property
    def compute_capability(self) -> str:
        """As `8.6`."""
        digits = str(self._device.compute_capability)
        return f"{digits[:-1]}.{digits[-1]}"

    def stream(self, priority: int = 0) -> Any:
        """A `cupy.cuda.Stream` that does not wait for the default stream; lower numbers go first."""
        return cupy.cuda.Stream(non_blocking=True, priority=priority)

    def event(self, *, spins: bool = False) -> Any:
        """A `cupy.cuda.Event`; who waits for it sleeps, or spins."""
        return cupy.cuda.Event(block=not spins, disable_timing=True)

    def memory(self, byte_size: int) -> Any:
        """A piece of memory with `ptr`, freed with the object. At least a byte, for every tensor wants an address.

        Raises:
            Unavailable: there is not so much left.
        """
        try:
            return cupy.cuda.Memory(max(byte_size, 1))
        except CudaError as error:
            raise Unavailable(f"no {byte_size} bytes of memory can be had on GPU {self.id}: {error}") from error

    def host_array(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, is_pinned: bool) -> NDArray[Any]:
        """Memory of the host, not initialised; pageable where the pool has no room."""
        size = math.prod(shape) * dtype.itemsize
        taken = self._pinned.take(size) if is_pinned and size else None
        return np.empty(shape, dtype) if taken is None else taken.view(dtype).reshape(shape)

    def copy_in(self, address: int, array: NDArray[Any], stream: Any) -> None:
        """From a C-contiguous array, which must stay as it is until the stream has come so far."""
        kind = cupy.cuda.runtime.memcpyHostToDevice
        if array.nbytes:
            cupy.cuda.runtime.memcpyAsync(address, array.ctypes.data, array.nbytes, kind, stream.ptr)

    def copy_out(self, array: NDArray[Any], address: int, stream: Any) -> None:
        """Into a C-contiguous array, which is filled when the stream has come so far."""
        kind = cupy.cuda.runtime.memcpyDeviceToHost
        if array.nbytes:
            cupy.cuda.runtime.memcpyAsync(array.ctypes.data, address, array.nbytes, kind, stream.ptr)

    def begin_capture(self, stream: Any) -> None:
        """What this thread puts on the stream from now on goes into a graph, until the stream's `end_capture`."""
        stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
