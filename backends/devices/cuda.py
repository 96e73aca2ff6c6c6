"""CUDA runtime, through cupy. Not seen running on a GPU.

Source: cupy's "Low-level CUDA support"; CUDA Runtime API, "Stream Management" and "Memory Management".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.devices.errors import device_errors
from backends.devices.pinned import Pinned
from backends.devices.runtime import DeviceRuntime
from backends.requirements import INSTALL_GPU
from protocol.errors import Unavailable
from protocol.tensors.cuda import CudaMemory, find_cupy
from protocol.tensors.device_tensor import DeviceBuffer


class CudaRuntime(DeviceRuntime):
    """One GPU, with a pool of its memory that keeps at most `pool_bytes`; what is needed beyond that comes from the
    driver each time, and goes back to it. With `has_peer_access` it copies from other GPUs directly, where it can."""

    def __init__(self, device_id: int, pool_bytes: int, has_peer_access: bool = True) -> None:
        self._cupy: Any = _cupy(f"GPU {device_id} cannot be used")
        self._device_id = device_id
        self._place = f"GPU {device_id}"
        self.memory = CudaMemory(self._cupy, device_id)
        self._pool: Any = None
        if has_peer_access:
            self._enable_peers()
        if pool_bytes:
            with device_errors(self._place), self._cupy.cuda.Device(device_id):
                self._pool = self._cupy.cuda.MemoryPool()
                self._pool.set_limit(size=pool_bytes)

    def _enable_peers(self) -> None:
        """Copies between GPUs that do not reach each other pass through the host, by the driver."""
        runtime = self._cupy.cuda.runtime
        with device_errors(self._place), self._cupy.cuda.Device(self._device_id):
            for other in range(runtime.getDeviceCount()):
                if other != self._device_id and runtime.deviceCanAccessPeer(self._device_id, other):
                    with suppress(RuntimeError):  # it is already
                        runtime.deviceEnablePeerAccess(other)

    def allocate(self, byte_size: int, stream: Any) -> DeviceBuffer:
        with device_errors(self._place), self._cupy.cuda.Device(self._device_id), stream:
            pointer = self._from_pool(byte_size)
            if pointer is None:
                pointer = self._from_driver(byte_size)
        return DeviceBuffer(self.memory, pointer.ptr, byte_size, pointer)

    def _from_pool(self, byte_size: int) -> Any:
        """None where it would pass its limit."""
        if self._pool is None:
            return None
        try:
            return self._pool.malloc(byte_size)
        except MemoryError:
            return None

    def _from_driver(self, byte_size: int) -> Any:
        cuda = self._cupy.cuda
        try:
            return cuda.MemoryPointer(cuda.Memory(byte_size), 0)
        except (RuntimeError, MemoryError):
            if self._pool is None:
                raise
            self._pool.free_all_blocks()
            return cuda.MemoryPointer(cuda.Memory(byte_size), 0)

    def new_stream(self, priority: int) -> Any:
        with device_errors(self._place), self._cupy.cuda.Device(self._device_id):
            if not priority:
                return self._cupy.cuda.Stream(non_blocking=True)
            return self._cupy.cuda.Stream(non_blocking=True, priority=priority)

    def stream_number(self, stream: Any) -> int:
        return int(stream.ptr)

    def to_device(self, target: DeviceBuffer, source: NDArray[np.uint8], stream: Any) -> None:
        self._copy(target.address, source.ctypes.data, source.nbytes, stream)

    def to_host(self, target: NDArray[np.uint8], source: DeviceBuffer, stream: Any) -> None:
        self._copy(target.ctypes.data, source.address, source.byte_size, stream)

    def copy(self, target: DeviceBuffer, source: DeviceBuffer, stream: Any) -> None:
        self._copy(target.address, source.address, source.byte_size, stream)

    def _copy(self, target: int, source: int, byte_size: int, stream: Any) -> None:
        runtime = self._cupy.cuda.runtime
        with device_errors(self._place), self._cupy.cuda.Device(self._device_id):
            runtime.memcpyAsync(target, source, byte_size, runtime.memcpyDefault, stream.ptr)

    def clear(self, target: DeviceBuffer, stream: Any) -> None:
        with device_errors(self._place), self._cupy.cuda.Device(self._device_id):
            self._cupy.cuda.runtime.memsetAsync(target.address, 0, target.byte_size, stream.ptr)

    def capture(self, work: Callable[[], None], stream: Any) -> Callable[[], None]:
        with device_errors(self._place), self._cupy.cuda.Device(self._device_id):
            # Other threads may go on with what may not be captured.
            stream.begin_capture(self._cupy.cuda.runtime.streamCaptureModeThreadLocal)
            try:
                work()
            finally:
                graph = stream.end_capture()

        def launch() -> None:
            with device_errors(self._place):
                graph.launch(stream)

        return launch

    def synchronize(self, stream: Any) -> None:
        with device_errors(self._place):
            stream.synchronize()

    @contextmanager
    def current(self, stream: Any) -> Iterator[None]:
        with self._cupy.cuda.Device(self._device_id), stream:
            yield


def pin(byte_size: int) -> Pinned:
    """Pinned memory that every device may copy from and to: by cupy, or by torch where only that is in use."""
    if find_cupy() is None and "torch" in sys.modules:
        return _PinnedByTorch(byte_size)
    cuda = _cupy("no memory can be pinned").cuda
    pinned: Pinned = cuda.PinnedMemory(byte_size, cuda.runtime.hostAllocPortable)
    return pinned


class _PinnedByTorch:
    def __init__(self, byte_size: int) -> None:
        torch = sys.modules["torch"]
        self._held = torch.empty(byte_size, dtype=torch.uint8, pin_memory=True)
        self.ptr: int = self._held.data_ptr()


def _cupy(what: str) -> ModuleType:
    cupy = find_cupy()
    if cupy is None:
        raise Unavailable(f"{what}: cupy is not installed or sees no GPU; {INSTALL_GPU}")
    return cupy
