"""In the place of cupy where there is no GPU: its few calls that the backend makes, over memory of the host.

Work on a stream is done when somebody waits for it and not before, so what is not waited for shows in a test. Device
memory is only reached through addresses of live pieces.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray


class CUDARuntimeError(RuntimeError):
    pass


class Gpu:
    """What the stand-in's parts share, and what tests look at."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.current = 0
        self.pieces: dict[int, Memory] = {}
        self.streams: dict[int, Stream] = {}
        self.events: list[Event] = []
        self.launches = 0
        self.pinned = 0
        self.limit = 1 << 40
        self.failure = ""

    def array(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """A view of device memory."""
        size = int(np.prod(shape)) * dtype.itemsize
        for start, piece in self.pieces.items():
            if start <= address and address + size <= start + piece.size:
                raw = piece.data[address - start : address - start + size]
                return raw.view(dtype).reshape(shape)
        raise CUDARuntimeError(f"cudaErrorIllegalAddress: {size} bytes at {address:#x}")


class Memory:
    def __init__(self, gpu: Gpu, size: int) -> None:
        if gpu.limit < size:
            raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
        self.size = size
        self.data = np.full(size, 0xEE, np.uint8)  # nobody may count on zeros
        self.ptr = int(self.data.ctypes.data)
        self._gpu = gpu
        gpu.pieces[self.ptr] = self

    def free(self) -> None:
        self._gpu.pieces.pop(self.ptr, None)


class Handle:
    """What the backend holds of a piece; it is free when this is dropped."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.ptr, self.size = memory.ptr, memory.size

    def __del__(self) -> None:
        self._memory.free()


class PinnedMemory:
    def __init__(self, gpu: Gpu, size: int) -> None:
        self._data = np.empty(size, np.uint8)
        self.ptr = int(self._data.ctypes.data)
        gpu.pinned += 1


class Stream:
    def __init__(self, gpu: Gpu, non_blocking: bool, priority: int) -> None:
        assert non_blocking
        self.priority = priority
        self.ptr = len(gpu.streams) + 1000
        self.done = 0
        self._gpu = gpu
        self._work: list[Callable[[], None]] = []
        self._captured: list[Callable[[], None]] | None = None
        gpu.streams[self.ptr] = self

    def add(self, work: Callable[[], None]) -> None:
        (self._work if self._captured is None else self._captured).append(work)

    def run_until(self, end: int) -> None:
        if self._gpu.failure:
            raise CUDARuntimeError(self._gpu.failure)
        while self.done < end:
            self.done += 1
            work, self._work[self.done - 1] = self._work[self.done - 1], _nothing
            work()

    @property
    def end(self) -> int:
        return len(self._work)

    def synchronize(self) -> None:
        assert self._captured is None, "a stream that is captured may not be waited for"
        self.run_until(self.end)

    def wait_event(self, event: Event) -> None:
        self.add(event.synchronize)

    def begin_capture(self, mode: int | None = None) -> None:
        assert self.done == self.end, "capture begins on an idle stream"
        self._captured = []

    def end_capture(self) -> Graph:
        return Graph(self._gpu, self.abandon_capture())

    def abandon_capture(self) -> list[Callable[[], None]]:
        assert self._captured is not None
        captured, self._captured = self._captured, None
        return captured


class Graph:
    def __init__(self, gpu: Gpu, work: list[Callable[[], None]]) -> None:
        self._gpu = gpu
        self._graph_work = work

    def launch(self, stream: Stream) -> None:
        self._gpu.launches += 1
        for work in self._graph_work:
            stream.add(work)


class Event:
    def __init__(self, gpu: Gpu, block: bool, disable_timing: bool) -> None:
        self.block = block
        self._point: tuple[Stream, int] | None = None
        gpu.events.append(self)

    def record(self, stream: Stream) -> None:
        self._point = (stream, stream.end)

    def synchronize(self) -> None:
        if self._point is not None:
            stream, end = self._point
            stream.run_until(end)


def modules(gpu: Gpu) -> dict[str, ModuleType]:
    """`cupy` over one such GPU."""

    def memcpy_async(target: int, source: int, size: int, kind: int, stream: int) -> None:
        def work() -> None:
            if kind == 1:
                gpu.array(target, (size,), np.dtype(np.uint8))[...] = _host(source, size)
            else:
                _host(target, size)[...] = gpu.array(source, (size,), np.dtype(np.uint8))

        gpu.streams[stream].add(work)

    def device_count() -> int:
        if not gpu.count:
            raise CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")
        return gpu.count

    class Device:
        def __init__(self, id: int) -> None:
            self.id = id
            self.compute_capability = "86"

        def use(self) -> None:
            gpu.current = self.id

    runtime = SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceCount=device_count,
        memcpyAsync=memcpy_async,
        memcpyHostToDevice=1,
        memcpyDeviceToHost=2,
        streamCaptureModeThreadLocal=1,
        hostAllocPortable=1,
    )
    cupy = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(  # type: ignore[attr-defined]  # a module is made here
        runtime=runtime,
        Device=Device,
        Memory=lambda size: Handle(Memory(gpu, size)),
        PinnedMemory=lambda size, flags: PinnedMemory(gpu, size),
        Stream=lambda non_blocking, priority: Stream(gpu, non_blocking, priority),
        Event=lambda block, disable_timing: Event(gpu, block, disable_timing),
    )
    return {"cupy": cupy}


def _nothing() -> None:
    pass


def _host(address: int, size: int) -> NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
