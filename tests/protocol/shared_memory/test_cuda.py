"""CUDA regions, as far as they can be seen without a GPU: host memory stands behind cupy's names."""
# ruff: noqa: N802, N815 (the names are cupy's)

from __future__ import annotations

import ctypes
import sys
from types import ModuleType, SimpleNamespace

import pytest

from protocol.errors import AlreadyExists, Internal, InvalidArgument, NotFound, ServerError, Unavailable
from protocol.shared_memory.regions import CudaRegion
from protocol.shared_memory.table import SharedMemoryTable
from tests.protocol.shared_memory.conftest import ClientSegment, MakeSegment

HANDLE = b"\x07" * 64
SIZE = 64
REFUSED = "cudaErrorInvalidValue: invalid argument"


class HostRuntime:
    """The part of `cupy.cuda.runtime` that is used: one device, one handle, an allocation of `SIZE` bytes."""

    memcpyHostToDevice = 1
    memcpyDeviceToHost = 2

    def __init__(self) -> None:
        self.memory = (ctypes.c_uint8 * SIZE)(*range(SIZE))
        self.device_count = 1
        self.current_device: int | None = None
        self.opened = 0
        self.is_lost = False
        self.unsynchronised = False

    def getDeviceCount(self) -> int:
        if not self.device_count:
            raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
        return self.device_count

    def ipcOpenMemHandle(self, handle: bytes) -> int:
        self._check(handle == HANDLE)
        self.opened += 1
        return ctypes.addressof(self.memory)

    def ipcCloseMemHandle(self, pointer: int) -> None:
        self._check(pointer == ctypes.addressof(self.memory) and self.opened > 0)
        self.opened -= 1

    def memcpy(self, to: int, source: int, size: int, kind: int) -> None:
        device = source if kind == self.memcpyDeviceToHost else to
        begin = ctypes.addressof(self.memory)
        if device >= 2**63:
            raise OverflowError("Python int too large to convert to C ssize_t")
        self._check(begin <= device and device + size <= begin + SIZE)
        ctypes.memmove(to, source, size)
        self.unsynchronised = kind == self.memcpyHostToDevice

    def streamSynchronize(self, stream: int) -> None:
        assert stream == 0
        self.unsynchronised = False

    def _check(self, is_right: bool) -> None:
        if self.is_lost or self.current_device != 0 or not is_right:
            raise RuntimeError(REFUSED)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> HostRuntime:
    runtime = HostRuntime()

    class Device:
        def __init__(self, device_id: int) -> None:
            self.device_id = device_id

        def __enter__(self) -> None:
            if self.device_id >= 2**31:
                raise OverflowError("value too large to convert to int")
            if self.device_id != 0:
                raise RuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
            runtime.current_device = self.device_id

        def __exit__(self, *_: object) -> None:
            runtime.current_device = None

    cupy = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(runtime=runtime, Device=Device)  # type: ignore[attr-defined]  # a module made by hand
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return runtime


def contents(runtime: HostRuntime) -> bytes:
    return bytes(runtime.memory)


def test_inputs_and_outputs(table: SharedMemoryTable, runtime: HostRuntime) -> None:
    """Copied from the device and to it, at their offsets; the write waits for the device."""
    table.register_cuda("c", HANDLE, 0, 32)
    assert table.cuda_status() == table.cuda_status("c") == (CudaRegion("c", 0, 32),)
    with table.lease() as lease:
        data = memoryview(lease.read("c", 8, 4))
        assert (bytes(data), data.readonly) == (bytes(range(8, 12)), True)
        assert bytes(lease.read("c", 8, 0)) == b""
        lease.output("c", 16, 8).write("o", b"\xff" * 4)
        lease.output("c", 16, 0).write("o", b"")
        assert not runtime.unsynchronised
        with pytest.raises(InvalidArgument, match=r"for output 'o' \(8 bytes\) should be at least 9 bytes"):
            lease.output("c", 16, 8).write("o", bytes(9))
        with pytest.raises(InvalidArgument, match=r"Invalid offset \+ byte size for shared memory region: 'c'"):
            lease.read("c", 8, 25)
    assert contents(runtime) == bytes(range(16)) + b"\xff" * 4 + bytes(range(20, SIZE))
    table.unregister_cuda("c")
    assert (table.cuda_status(), runtime.opened) == ((), 0)


def test_both_kinds_share_one_name_space(
    table: SharedMemoryTable, runtime: HostRuntime, make_segment: MakeSegment
) -> None:
    client: ClientSegment = make_segment(bytes(8))
    table.register_cuda("c", HANDLE, 0, SIZE)
    with pytest.raises(AlreadyExists, match="shared memory region 'c' already in manager"):
        table.register_system("c", client.key, 0, 8)
    table.register_system("s", client.key, 0, 8)
    with pytest.raises(NotFound) as caught:
        table.system_status("c")
    assert caught.value.message == (
        "The region named 'c' is registered as CUDA shared memory, not system shared memory"
    )
    assert [region.name for region in table.system_status()] == ["s"]
    assert [region.name for region in table.cuda_status()] == ["c"]
    table.unregister_system("c")
    table.unregister_system()
    assert [region.name for region in table.cuda_status()] == ["c"]


@pytest.mark.parametrize(
    ("handle", "device_id", "byte_size", "text"),
    [
        (b"", 0, 8, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"),
        (bytes(65), 0, 8, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"),
        (
            bytes(64),
            0,
            8,
            f"failed to register CUDA shared memory region 'c': failed to open CUDA IPC handle: {REFUSED}",
        ),
        (
            HANDLE,
            7,
            8,
            "failed to register CUDA shared memory region 'c': failed to open CUDA IPC handle: cudaErrorInvalidDevice: "
            "invalid device ordinal",
        ),
        (
            HANDLE,
            2**40,
            8,
            "failed to register CUDA shared memory region 'c': failed to open CUDA IPC handle: value too large to "
            "convert to int",
        ),
        (HANDLE, 0, SIZE + 1, "failed to register shared memory region 'c': invalid args"),
        (HANDLE, 0, 2**64, "failed to register shared memory region 'c': invalid args"),
        (HANDLE, 0, 0, "failed to register shared memory region 'c': invalid args"),
        (HANDLE, 0, -8, "failed to register shared memory region 'c': invalid args"),
    ],
)
def test_what_is_no_device_memory_is_refused(
    table: SharedMemoryTable, runtime: HostRuntime, handle: bytes, device_id: int, byte_size: int, text: str
) -> None:
    """As the client's mistake, with the handle closed again."""
    with pytest.raises(InvalidArgument) as caught:
        table.register_cuda("c", handle, device_id, byte_size)
    assert caught.value.message == text
    assert (runtime.opened, table.cuda_status()) == (0, ())


def test_no_device(table: SharedMemoryTable, runtime: HostRuntime) -> None:
    """cupy is installed, a GPU is not."""
    runtime.device_count = 0
    with pytest.raises(InvalidArgument) as caught:
        table.register_cuda("c", HANDLE, 0, 8)
    assert caught.value.message == "failed to register CUDA shared memory region: 'c', GPUs not supported"


def test_unregistered_under_a_lease(table: SharedMemoryTable, runtime: HostRuntime) -> None:
    table.register_cuda("c", HANDLE, 0, SIZE)
    with table.lease() as lease:
        lease.read("c", 0, 1)
        table.unregister_cuda()
        assert (len(table.cuda_status()), runtime.opened) == (1, 1)
        with pytest.raises(AlreadyExists):
            table.register_cuda("c", HANDLE, 0, SIZE)
    assert (table.cuda_status(), runtime.opened) == ((), 0)


def test_a_device_that_is_lost(
    table: SharedMemoryTable, runtime: HostRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are told so; the regions can still be unregistered, and the client learns what became of them."""
    table.register_cuda("a", HANDLE, 0, SIZE)
    table.register_cuda("b", HANDLE, 0, SIZE)
    runtime.is_lost = True
    with table.lease() as lease:
        with pytest.raises(Unavailable) as caught:
            lease.read("a", 0, 8)
        assert caught.value.message == f"unable to read 8 bytes of CUDA shared memory region 'a': {REFUSED}"
        with pytest.raises(Unavailable) as caught:
            lease.output("a", 0, 8).write("o", bytes(8))
        assert caught.value.message == f"unable to write 8 bytes to CUDA shared memory region 'a': {REFUSED}"
    with pytest.raises(Internal) as failed:
        table.unregister_cuda()
    assert failed.value.message == "Failed to unregister the following cuda shared memory regions: a ,b ,"
    assert table.cuda_status() == ()
    assert [record.getMessage() for record in caplog.records] == [
        f"unable to close CUDA shared memory region '{name}': {REFUSED}" for name in "ab"
    ]


def test_the_name_is_taken_while_the_handle_is_opened(
    table: SharedMemoryTable, runtime: HostRuntime, make_segment: MakeSegment
) -> None:
    """Opening may take seconds in a thread; who comes second gives the memory back."""
    client = make_segment(bytes(8))
    open_handle = runtime.ipcOpenMemHandle

    def open_slowly(handle: bytes) -> int:
        table.register_system("c", client.key, 0, 8)
        return open_handle(handle)

    runtime.ipcOpenMemHandle = open_slowly  # type: ignore[method-assign]  # another client, in the middle of it
    with pytest.raises(ServerError) as caught:
        table.register_cuda("c", HANDLE, 0, 8)
    assert isinstance(caught.value, AlreadyExists)
    assert (runtime.opened, len(table.system_status())) == (0, 1)
