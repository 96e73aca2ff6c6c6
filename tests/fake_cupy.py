"""Host memory behind cupy's names: what of CUDA's calls can be seen without a GPU.

Addresses are real ones, and only what is allocated here, pinned or opened by its handle may be copied on the device's
side. What is enqueued on a stream is done when the stream is waited for.
"""
# ruff: noqa: N802, N815 (the names are cupy's)

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

HANDLE = b"\x07" * 64
SIZE = 64
REFUSED = "cudaErrorInvalidValue: invalid argument"


class CUDARuntimeError(RuntimeError):
    pass


class OutOfMemoryError(MemoryError):
    """As `cupy.cuda.memory.OutOfMemoryError`."""


class FakeRuntime:
    """The part of `cupy.cuda.runtime` that is used: two devices, one handle of an allocation of `SIZE` bytes on the
    first. `free_bytes` is what can be allocated on each."""

    memcpyHostToDevice = 1
    memcpyDeviceToHost = 2
    memcpyDefault = 4
    hostAllocPortable = 1
    streamCaptureModeThreadLocal = 1

    def __init__(self) -> None:
        self.memory = (ctypes.c_uint8 * SIZE)(*range(SIZE))
        self.device_count = 2
        self._current = threading.local()
        self.opened = 0
        self.is_lost = False
        self.unsynchronised = False
        self.free_bytes = 1 << 20
        self.allocated: dict[int, tuple[int, int]] = {}  # size and device by address
        self.pinned: dict[int, int] = {}
        self.streams: list[FakeStream] = []
        self.copied: list[int] = []  # sizes of what was enqueued
        self.launches = 0
        self.peers: list[tuple[int | None, int]] = []

    @property
    def current_device(self) -> int | None:
        """The calling thread's."""
        return getattr(self._current, "device", None)

    @current_device.setter
    def current_device(self, device: int | None) -> None:
        self._current.device = device

    @property
    def current_stream(self) -> FakeStream | None:
        """The calling thread's."""
        return getattr(self._current, "stream", None)

    @current_stream.setter
    def current_stream(self, stream: FakeStream | None) -> None:
        self._current.stream = stream

    def getDeviceCount(self) -> int:
        if not self.device_count:
            raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
        return self.device_count

    def deviceCanAccessPeer(self, device: int, other: int) -> int:
        return 1

    def deviceEnablePeerAccess(self, other: int) -> None:
        pair = (self.current_device, other)
        if pair in self.peers:
            raise CUDARuntimeError("cudaErrorPeerAccessAlreadyEnabled: peer access is already enabled")
        self.peers.append(pair)

    def ipcOpenMemHandle(self, handle: bytes) -> int:
        self._check(handle == HANDLE and self.current_device == 0)
        self.opened += 1
        return ctypes.addressof(self.memory)

    def ipcCloseMemHandle(self, pointer: int) -> None:
        self._check(pointer == ctypes.addressof(self.memory) and self.opened > 0)
        self.opened -= 1

    def memcpy(self, to: int, source: int, size: int, kind: int) -> None:
        self.check_copy(to, source, size, kind)
        ctypes.memmove(to, source, size)
        self.unsynchronised = kind != self.memcpyDeviceToHost

    def memcpyAsync(self, to: int, source: int, size: int, kind: int, stream: int) -> None:
        self.check_copy(to, source, size, kind)
        on_device = [address for address in (to, source) if self.is_device(address, size)]

        self.copied.append(size)

        def work() -> None:
            for address in on_device:
                self.check_kept(address, size)
            ctypes.memmove(to, source, size)

        self.stream(stream).add(work)

    def memsetAsync(self, address: int, value: int, size: int, stream: int) -> None:
        self._check(self.is_device(address, size))

        def work() -> None:
            self.check_kept(address, size)
            ctypes.memset(address, value, size)

        self.stream(stream).add(work)

    def stream(self, pointer: int) -> FakeStream:
        return next(each for each in self.streams if each.ptr == pointer)

    def streamSynchronize(self, stream: int) -> None:
        assert stream == 0
        self.unsynchronised = False

    def check_copy(self, to: int, source: int, size: int, kind: int) -> None:
        if max(to, source) >= 2**63:
            raise OverflowError("Python int too large to convert to C ssize_t")
        on_device = [self.is_device(address, size) for address in (to, source)]
        if kind == self.memcpyDefault:
            self._check(any(on_device))
        else:
            self._check(on_device[0] if kind == self.memcpyHostToDevice else on_device[1])

    def check_kept(self, address: int, size: int) -> None:
        """What is on a stream may only touch what is still there when it runs."""
        if not self.is_device(address, size):
            raise CUDARuntimeError(f"cudaErrorIllegalAddress: {size} bytes at {address:#x}")

    def is_device(self, address: int, size: int) -> bool:
        blocks = [(begin, held) for begin, (held, _) in list(self.allocated.items())]
        if self.opened:
            blocks.append((ctypes.addressof(self.memory), SIZE))
        return any(begin <= address and address + size <= begin + held for begin, held in blocks)

    def _check(self, is_right: bool) -> None:
        if self.is_lost or self.current_device is None or not is_right:
            raise CUDARuntimeError(REFUSED)


class FakeStream:
    """`cupy.cuda.Stream`; a context manager that makes it the current one."""

    def __init__(self, runtime: FakeRuntime, *, non_blocking: bool = False, priority: int | None = None) -> None:
        assert non_blocking, "a stream that waits for the default one"
        self.runtime = runtime
        self.priority = priority
        self.device = runtime.current_device
        self.ptr = id(self)
        self._work: list[Callable[[], object]] = []
        self._captured: list[Callable[[], object]] | None = None
        self._before: list[FakeStream | None] = []
        runtime.streams.append(self)

    def add(self, work: Callable[[], object]) -> None:
        """Put on the stream, or into the graph that is captured."""
        (self._work if self._captured is None else self._captured).append(work)

    def synchronize(self) -> None:
        assert self._captured is None, "a stream that is captured may not be waited for"
        work, self._work = self._work, []
        if self.runtime.is_lost:
            raise CUDARuntimeError(REFUSED)
        for each in work:
            each()

    def begin_capture(self, mode: int) -> None:
        assert mode == self.runtime.streamCaptureModeThreadLocal
        assert not self._work, "capture begins on an idle stream"
        self._captured = []

    def end_capture(self) -> FakeGraph:
        return FakeGraph(self.runtime, self.abandon_capture())

    def abandon_capture(self) -> list[Callable[[], object]]:
        captured, self._captured = self._captured, None
        assert captured is not None
        return captured

    def __enter__(self) -> FakeStream:
        self._before.append(self.runtime.current_stream)
        self.runtime.current_stream = self
        return self

    def __exit__(self, *_: object) -> None:
        self.runtime.current_stream = self._before.pop()


class FakeGraph:
    """`cupy.cuda.graph.Graph`."""

    def __init__(self, runtime: FakeRuntime, work: list[Callable[[], object]]) -> None:
        self._runtime = runtime
        self._captured = work

    def launch(self, stream: FakeStream) -> None:
        self._runtime.launches += 1
        for each in self._captured:
            stream.add(each)


def fake_cupy(runtime: FakeRuntime) -> ModuleType:
    """The module."""

    class Device:
        def __init__(self, device_id: int) -> None:
            self.device_id = device_id

        def __enter__(self) -> None:
            if self.device_id >= 2**31:
                raise OverflowError("value too large to convert to int")
            if not 0 <= self.device_id < runtime.device_count:
                raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
            self.before = runtime.current_device
            runtime.current_device = self.device_id

        def __exit__(self, *_: object) -> None:
            runtime.current_device = self.before

    class Memory:
        """Straight from the driver."""

        def __init__(self, size: int) -> None:
            device = runtime.current_device
            assert device is not None
            self.ptr = 0
            if sum(held for held, on in list(runtime.allocated.values()) if on == device) + size > runtime.free_bytes:
                raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
            self._buffer = ctypes.create_string_buffer(b"\xee" * (size + 256))  # nobody may count on zeros
            begin = ctypes.addressof(self._buffer)
            self.ptr = begin + -begin % 256
            runtime.allocated[self.ptr] = size, device

        def __del__(self) -> None:
            runtime.allocated.pop(self.ptr, None)

    class MemoryPointer:
        def __init__(self, mem: Any, offset: int) -> None:
            self.mem = mem
            self.ptr = mem.ptr + offset

    class MemoryPool:
        """Keeps what was freed; the limit is that of the device which was current."""

        def __init__(self) -> None:
            self.limits: dict[int | None, int] = {}
            self.kept: list[Any] = []
            runtime.pool = self  # type: ignore[attr-defined]  # for tests

        def set_limit(self, *, size: int) -> None:
            self.limits[runtime.current_device] = size

        def malloc(self, size: int) -> MemoryPointer:
            assert runtime.current_stream is not None, "memory of a pool belongs to a stream"
            held = sum(held for held, on in list(runtime.allocated.values()) if on == runtime.current_device)
            if held + size > self.limits[runtime.current_device]:
                raise OutOfMemoryError(f"Out of memory allocating {size:,} bytes")
            return MemoryPointer(Memory(size), 0)

        def free_all_blocks(self) -> None:
            self.kept.clear()

    class PinnedMemory:
        def __init__(self, size: int, flags: int) -> None:
            assert flags == runtime.hostAllocPortable
            self._buffer = ctypes.create_string_buffer(size)
            self.ptr = ctypes.addressof(self._buffer)
            runtime.pinned[self.ptr] = size

        def __del__(self) -> None:
            runtime.pinned.pop(self.ptr, None)

    def stream(**settings: Any) -> FakeStream:
        return FakeStream(runtime, **settings)

    cupy = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(  # type: ignore[attr-defined]  # a module made by hand
        runtime=runtime,
        Device=Device,
        Memory=Memory,
        MemoryPointer=MemoryPointer,
        MemoryPool=MemoryPool,
        PinnedMemory=PinnedMemory,
        Stream=stream,
    )
    return cupy


@pytest.fixture
def cupy_runtime(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    """Puts it in cupy's place."""
    runtime = FakeRuntime()
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(runtime))
    return runtime
