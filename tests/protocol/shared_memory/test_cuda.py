"""CUDA regions, as far as they can be seen without a GPU: host memory stands behind cupy's names."""

from __future__ import annotations

import gc

import pytest

from protocol.datatypes import DataType
from protocol.errors import AlreadyExists, Internal, InvalidArgument, NotFound, ServerError, Unavailable
from protocol.shared_memory.regions import CudaRegion
from protocol.shared_memory.table import SharedMemoryTable
from protocol.tensors.cuda import CudaMemory, find_cupy
from protocol.tensors.device_tensor import DeviceBuffer, device_tensor
from tests.fake_cupy import HANDLE, REFUSED, SIZE, FakeRuntime
from tests.protocol.shared_memory.conftest import ClientSegment, MakeSegment, output


@pytest.fixture
def runtime(cupy_runtime: FakeRuntime) -> FakeRuntime:
    return cupy_runtime


def contents(runtime: FakeRuntime) -> bytes:
    return bytes(runtime.memory)


def test_inputs_and_outputs(table: SharedMemoryTable, runtime: FakeRuntime) -> None:
    """Copied from the device and to it, at their offsets; the write waits for the device."""
    table.register_cuda("c", HANDLE, 0, 32)
    assert table.cuda_status() == table.cuda_status("c") == (CudaRegion("c", 0, 32),)
    with table.lease() as lease:
        data = memoryview(lease.read("c", 8, 4))
        assert (bytes(data), data.readonly) == (bytes(range(8, 12)), True)
        assert bytes(lease.read("c", 8, 0)) == b""
        lease.output("c", 16, 8).write(output(b"\xff" * 4))
        lease.output("c", 16, 0).write(output(b""))
        assert not runtime.unsynchronised
        with pytest.raises(InvalidArgument, match=r"for output 'o' \(8 bytes\) should be at least 9 bytes"):
            lease.output("c", 16, 8).write(output(bytes(9)))
        with pytest.raises(InvalidArgument, match=r"Invalid offset \+ byte size for shared memory region: 'c'"):
            lease.read("c", 8, 25)
    assert contents(runtime) == bytes(range(16)) + b"\xff" * 4 + bytes(range(20, SIZE))
    table.unregister_cuda("c")
    assert (table.cuda_status(), runtime.opened) == ((), 0)


@pytest.mark.slow
def test_inputs_stay_where_they_are(table: SharedMemoryTable, runtime: FakeRuntime) -> None:
    """Views of the region, which keep it for as long as anybody has them, also when the request is over."""
    table.register_cuda("c", HANDLE, 0, 32)
    with table.lease() as lease:
        view = lease.view("c", 8, 8)
        assert view is not None
        assert (view.device, view.byte_size) == ((2, 0), 8)
        with pytest.raises(InvalidArgument, match=r"Invalid offset \+ byte size for shared memory region: 'c'"):
            lease.view("c", 8, 25)
    tensor = device_tensor("x", DataType.UINT8, (8,), view)
    del view
    table.unregister_cuda("c")
    assert (len(table.cuda_status()), runtime.opened) == (1, 1)
    runtime.memory[8] = 99  # the client may do that
    part = tensor.buffer.part(0, 4)
    assert bytes(tensor.data) == bytes([99, *range(9, 16)])
    del tensor
    assert runtime.opened == 1
    del part
    gc.collect()
    assert (table.cuda_status(), runtime.opened) == ((), 0)


def test_outputs_go_from_device_to_device(table: SharedMemoryTable, runtime: FakeRuntime) -> None:
    table.register_cuda("c", HANDLE, 0, SIZE)
    cupy = find_cupy()
    assert cupy is not None
    with cupy.cuda.Device(1):
        memory = cupy.cuda.Memory(8)
    there = CudaMemory(cupy, 1)
    there.write(memory.ptr, b"\xfe" * 8)
    made = device_tensor("o", DataType.UINT8, (8,), DeviceBuffer(there, memory.ptr, 8, memory))
    with table.lease() as lease:
        target = lease.output("c", 4, 8)
        assert target.is_on_device
        target.write(made)
        assert not runtime.unsynchronised
        with pytest.raises(InvalidArgument, match="should be at least 8 bytes"):
            lease.output("c", 4, 7).write(made)
    assert made._host is None
    assert contents(runtime) == bytes(range(4)) + b"\xfe" * 8 + bytes(range(12, SIZE))


def test_from_device_to_the_host(table: SharedMemoryTable, runtime: FakeRuntime, make_segment: MakeSegment) -> None:
    """A tensor on a device that belongs into system memory."""
    client = make_segment(bytes(8))
    table.register_cuda("c", HANDLE, 0, SIZE)
    table.register_system("s", client.key, 0, 8)
    with table.lease() as lease:
        view = lease.view("c", 16, 8)
        assert view is not None
        assert lease.view("s", 0, 8) is None
        target = lease.output("s", 0, 8)
        assert not target.is_on_device
        target.write(device_tensor("o", DataType.INT64, (1,), view))
    assert client.contents == bytes(range(16, 24))


def test_both_kinds_share_one_name_space(
    table: SharedMemoryTable, runtime: FakeRuntime, make_segment: MakeSegment
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
    table: SharedMemoryTable, runtime: FakeRuntime, handle: bytes, device_id: int, byte_size: int, text: str
) -> None:
    """As the client's mistake, with the handle closed again."""
    with pytest.raises(InvalidArgument) as caught:
        table.register_cuda("c", handle, device_id, byte_size)
    assert caught.value.message == text
    assert (runtime.opened, table.cuda_status()) == (0, ())


def test_no_device(table: SharedMemoryTable, runtime: FakeRuntime) -> None:
    """cupy is installed, a GPU is not."""
    runtime.device_count = 0
    with pytest.raises(InvalidArgument) as caught:
        table.register_cuda("c", HANDLE, 0, 8)
    assert caught.value.message == "failed to register CUDA shared memory region: 'c', GPUs not supported"


def test_unregistered_under_a_lease(table: SharedMemoryTable, runtime: FakeRuntime) -> None:
    table.register_cuda("c", HANDLE, 0, SIZE)
    with table.lease() as lease:
        lease.read("c", 0, 1)
        table.unregister_cuda()
        assert (len(table.cuda_status()), runtime.opened) == (1, 1)
        with pytest.raises(AlreadyExists):
            table.register_cuda("c", HANDLE, 0, SIZE)
    assert (table.cuda_status(), runtime.opened) == ((), 0)


def test_a_device_that_is_lost(
    table: SharedMemoryTable, runtime: FakeRuntime, caplog: pytest.LogCaptureFixture
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
            lease.output("a", 0, 8).write(output(bytes(8)))
        assert caught.value.message == f"unable to write 8 bytes to CUDA shared memory region 'a': {REFUSED}"
    with pytest.raises(Internal) as failed:
        table.unregister_cuda()
    assert failed.value.message == "Failed to unregister the following cuda shared memory regions: a ,b ,"
    assert table.cuda_status() == ()
    assert [record.getMessage() for record in caplog.records] == [
        f"unable to close CUDA shared memory region '{name}': {REFUSED}" for name in "ab"
    ]


def test_the_name_is_taken_while_the_handle_is_opened(
    table: SharedMemoryTable, runtime: FakeRuntime, make_segment: MakeSegment
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
