"""Tensors in real shared memory, and outputs as classes, around a core that is not there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import numpy as np
import pytest

from protocol.core import InferenceCore
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, NotFound, Unavailable
from protocol.messages import InferenceRequest, InferenceResponse, Tensor, decode_bytes_elements
from protocol.shared_memory import placement as placement_module
from protocol.shared_memory import system
from protocol.shared_memory.placement import MemoryReference, PlacedRequest, Placement
from protocol.shared_memory.table import SharedMemoryTable
from protocol.tensors.device_tensor import DeviceTensor, device_tensor
from protocol.tensors.shared_tensor import SharedTensor
from tests.fake_cupy import HANDLE, SIZE, FakeRuntime
from tests.protocol.shared_memory.conftest import ClientSegment


@dataclass
class Core:
    """What placement asks of a core."""

    batches: bool = False
    on_gpu: bool = False
    shares: bool = False

    def takes_device_tensors(self, name: str, version: int) -> bool:
        return self.on_gpu

    def takes_shared_tensors(self, name: str, version: int) -> bool:
        return self.shares

    def is_batching(self, name: str, version: int) -> bool:
        if name != "m":
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return self.batches

    def labels(self, name: str, version: int, output: str) -> Sequence[str]:
        return ("cat", "dog") if output == "y" else ()


def core(*, batches: bool = False) -> InferenceCore:
    return cast(InferenceCore, Core(batches))


@contextmanager
def region(table: SharedMemoryTable, contents: bytes) -> Iterator[ClientSegment]:
    segment = ClientSegment(contents)
    try:
        table.register_system("r", segment.key, 0, len(contents))
        yield segment
    finally:
        segment.unlink()


@pytest.fixture
def table() -> Iterator[SharedMemoryTable]:
    table = SharedMemoryTable(allow_registration=True)
    yield table
    table.close()


def placeholder(name: str, count: int) -> Tensor:
    return Tensor(name, DataType.UINT8, (count,), b"")


def response_of(*outputs: Tensor) -> InferenceResponse:
    return InferenceResponse("m", 1, list(outputs), "7", {"key": 1}, is_final=False)


async def test_inputs_are_copied_and_outputs_written(table: SharedMemoryTable) -> None:
    """Only what the request names; the response keeps everything but the data."""
    with region(table, bytes(range(64))) as segment, table.lease() as lease:
        request = InferenceRequest("m", [Tensor("a", DataType.UINT8, (1,), b"!"), placeholder("b", 4)])
        placement = Placement({1: MemoryReference("r", 8, 4)}, {"y": MemoryReference("r", 32, 8)})
        placed = await PlacedRequest.fetch(request, placement, lease, core())
        assert [bytes(tensor.data) for tensor in request.inputs] == [b"!", bytes(range(8, 12))]
        outputs = [Tensor("x", DataType.UINT8, (2,), b"no"), Tensor("y", DataType.UINT8, (3,), b"yes")]
        given = response_of(*outputs)
        response = await placed.deliver(given)
        assert [bytes(tensor.data) for tensor in response.outputs] == [b"no", b""]
        assert (response.outputs[1].datatype, response.outputs[1].shape) == (DataType.UINT8, (3,))
        assert (response.id, response.parameters, response.is_final) == ("7", {"key": 1}, False)
        assert segment.contents == bytes(range(32)) + b"yes" + bytes(range(35, 64))
        assert bytes(given.outputs[1].data) == b"yes"  # the core's response may answer others as well


async def test_large_tensors_go_the_same_way(table: SharedMemoryTable) -> None:
    """In a thread, where copying would hold up every other call."""
    size = placement_module.COPY_IN_THREAD_ABOVE + 1
    data = np.random.default_rng(1).bytes(size)
    with region(table, data) as segment, table.lease() as lease:
        request = InferenceRequest("m", [placeholder("a", size)])
        whole = MemoryReference("r", 0, size)
        placed = await PlacedRequest.fetch(request, Placement({0: whole}, {"y": whole}), lease, core())
        assert request.inputs[0].data == data
        await placed.deliver(response_of(Tensor("y", DataType.UINT8, (size,), data[::-1])))
        assert segment.contents == data[::-1]


async def test_outputs_that_do_not_fit_are_refused(table: SharedMemoryTable) -> None:
    with region(table, bytes(64)) as segment, table.lease() as lease:
        placement = Placement(outputs={"y": MemoryReference("r", 0, 4)})
        placed = await PlacedRequest.fetch(InferenceRequest("m", []), placement, lease, core())
        with pytest.raises(InvalidArgument, match=r"output 'y' \(4 bytes\) should be at least 5 bytes"):
            await placed.deliver(response_of(Tensor("y", DataType.UINT8, (5,), bytes(5))))
        assert segment.contents == bytes(64)


REFERENCES: list[tuple[Placement, type[Exception], str]] = [
    (Placement({0: MemoryReference("r", 64, 1)}), InvalidArgument, "Invalid offset for shared memory region: 'r'"),
    (Placement({0: MemoryReference("r", -1, 1)}), InvalidArgument, "Invalid offset for shared memory region: 'r'"),
    (Placement({0: MemoryReference("r", 63, 2)}), InvalidArgument, "Invalid offset + byte size"),
    (Placement({0: MemoryReference("r", 0, -1)}), InvalidArgument, "Invalid offset + byte size"),
    (Placement({0: MemoryReference("r", 0, 2**63 - 1)}), InvalidArgument, "Invalid offset + byte size"),
    (Placement(outputs={"y": MemoryReference("r", 60, 5)}), InvalidArgument, "Invalid offset + byte size"),
    (Placement({0: MemoryReference("gone", 0, 1)}), NotFound, "Unable to find shared memory region: 'gone'"),
    (Placement(outputs={"y": MemoryReference("", 0, 1)}), NotFound, "Unable to find shared memory region: ''"),
]


@pytest.mark.parametrize(("placement", "error", "message"), REFERENCES)
async def test_references_that_lead_nowhere(
    placement: Placement, error: type[Exception], message: str, table: SharedMemoryTable
) -> None:
    """Found before the core sees the request."""
    with region(table, bytes(64)), table.lease() as lease, pytest.raises(error) as caught:
        await PlacedRequest.fetch(InferenceRequest("m", [placeholder("a", 1)]), placement, lease, core())
    assert message in str(caught.value)


async def test_a_region_stays_until_its_requests_response_is_there(table: SharedMemoryTable) -> None:
    with region(table, bytes(64)) as segment:
        with table.lease() as lease:
            placement = Placement(outputs={"y": MemoryReference("r", 0, 4)})
            placed = await PlacedRequest.fetch(InferenceRequest("m", []), placement, lease, core())
            table.unregister_system("r")
            await placed.deliver(response_of(Tensor("y", DataType.UINT8, (4,), b"here")))
            assert segment.contents[:4] == b"here"
            assert [one.name for one in table.system_status()] == ["r"]
        assert table.system_status() == ()


async def test_a_region_that_its_client_truncates_meanwhile(table: SharedMemoryTable) -> None:
    with region(table, bytes(64)) as segment, table.lease() as lease:
        placement = Placement(outputs={"y": MemoryReference("r", 0, 4)})
        placed = await PlacedRequest.fetch(InferenceRequest("m", []), placement, lease, core())
        segment.truncate(2)
        with pytest.raises(InvalidArgument, match="was truncated"):
            await placed.deliver(response_of(Tensor("y", DataType.UINT8, (4,), b"here")))


@pytest.mark.parametrize(
    ("max_batch_size", "shape", "expected"),
    [(0, (1,), ["3.000000:1:dog"]), (8, (2, 1), ["3.000000:1:dog", "2.000000:1:dog"])],
)
@pytest.mark.parametrize("is_large", [False, True])
async def test_outputs_as_classes(
    max_batch_size: int,
    shape: tuple[int, ...],
    expected: list[str],
    is_large: bool,
    table: SharedMemoryTable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the model's labels, and a list for each entry of a batch where the model has one."""
    if is_large:
        monkeypatch.setattr(placement_module, "SORT_IN_THREAD_ABOVE", 1)
    with table.lease() as lease:
        placement = Placement(classes={"y": 1})
        batching = core(batches=max_batch_size > 0)
        placed = await PlacedRequest.fetch(InferenceRequest("m", []), placement, lease, batching)
        values = np.array([[0, 3], [1, 2]], np.float32)
        other = Tensor.from_numpy("z", values)
        response = await placed.deliver(response_of(Tensor.from_numpy("y", values), other))
        classes, untouched = response.outputs
        assert classes.shape == shape
        assert [one.decode() for one in decode_bytes_elements(classes.data)] == expected
        assert untouched is other


async def test_classes_of_an_unknown_model(table: SharedMemoryTable) -> None:
    with table.lease() as lease, pytest.raises(NotFound):
        await PlacedRequest.fetch(InferenceRequest("other", []), Placement(classes={"y": 1}), lease, core())


@pytest.mark.parametrize("on_gpu", [True, False])
async def test_what_is_on_a_device_stays_there(
    table: SharedMemoryTable, cupy_runtime: FakeRuntime, on_gpu: bool
) -> None:
    """Where the model takes it so; strings and what is in system memory are copied."""
    table.register_cuda("c", HANDLE, 0, SIZE)
    with region(table, bytes(range(64))), table.lease() as lease:
        request = InferenceRequest(
            "m", [placeholder("a", 4), placeholder("b", 4), Tensor("s", DataType.BYTES, (1,), b"")]
        )
        placement = Placement(
            {0: MemoryReference("c", 8, 4), 1: MemoryReference("r", 16, 4), 2: MemoryReference("c", 0, 4)},
            {"y": MemoryReference("c", 32, 8), "z": MemoryReference("r", 32, 8), "x": MemoryReference("c", 0, 8)},
            {"x": 1},
        )
        placed = await PlacedRequest.fetch(request, placement, lease, cast(InferenceCore, Core(on_gpu=on_gpu)))
        assert [isinstance(tensor, DeviceTensor) for tensor in request.inputs] == [on_gpu, False, False]
        assert [bytes(tensor.data) for tensor in request.inputs] == [
            bytes(range(8, 12)),
            bytes(range(16, 20)),
            bytes(range(4)),
        ]
        assert (request.has_device_inputs, request.device_outputs) == (on_gpu, frozenset({"y"}))
        view = lease.view("c", 40, 4)
        assert view is not None
        response = await placed.deliver(response_of(device_tensor("y", DataType.UINT8, (4,), view)))
        assert bytes(response.outputs[0].data) == b""
        assert bytes(cupy_runtime.memory)[30:38] == bytes([30, 31, 40, 41, 42, 43, 36, 37])


SHARING = cast(InferenceCore, Core(shares=True))


async def test_inputs_that_the_model_reads_where_they_are(table: SharedMemoryTable, cupy_runtime: FakeRuntime) -> None:
    """Strings are copied at once, since their lengths are looked at; and what is in memory of a device."""
    table.register_cuda("c", HANDLE, 0, SIZE)
    with region(table, bytes(range(64))) as segment:
        request = InferenceRequest(
            "m", [placeholder("a", 4), Tensor("s", DataType.BYTES, (1,), b""), placeholder("d", 4), placeholder("e", 1)]
        )
        request.inputs[3].data = b"!"
        placement = Placement(
            {0: MemoryReference("r", 8, 4), 1: MemoryReference("r", 0, 4), 2: MemoryReference("c", 4, 4)}
        )
        with table.lease() as lease:
            await PlacedRequest.fetch(request, placement, lease, SHARING)
        shared = request.inputs[0]
        assert isinstance(shared, SharedTensor)
        assert [isinstance(tensor, SharedTensor) for tensor in request.inputs[1:]] == [False] * 3
        assert (shared.byte_size, len(shared)) == (4, 4)
        memory = memoryview(bytearray(4))
        shared.read_into(memory)
        assert bytes(memory) == bytes(range(8, 12))
        segment.write(8, b"new!")
        other = shared.under("b", (2, 2))
        assert (other.name, other.as_numpy().tolist()) == ("b", [list(b"ne"), list(b"w!")])
        segment.write(8, b"gone")
        other.read_into(memory)
        assert bytes(memory) == b"new!", "what was read once counts"
        assert bytes(shared.data) == bytes(shared.under("c", (4,)).data) == b"gone"
        assert [bytes(tensor.data) for tensor in request.inputs[1:]] == [bytes(range(4)), bytes(range(4, 8)), b"!"]


@pytest.mark.parametrize("left", [0, 8, 10])
async def test_what_a_client_takes_away_meanwhile_is_zero(table: SharedMemoryTable, left: int) -> None:
    """Of its own request and no other; what it has taken away before is an error."""
    with region(table, b"\xff" * 64) as segment, table.lease() as lease:
        request = InferenceRequest("m", [placeholder("a", 4)])
        placement = Placement({0: MemoryReference("r", 8, 4)})
        await PlacedRequest.fetch(request, placement, lease, SHARING)
        segment.truncate(left)
        memory = memoryview(bytearray(b"abcd"))
        assert isinstance(request.inputs[0], SharedTensor)
        request.inputs[0].read_into(memory)
        assert bytes(memory) == bytes(request.inputs[0].data) == (b"\xff" * max(0, left - 8)).ljust(4, b"\0")
        with pytest.raises(InvalidArgument, match=f"was truncated: 4 bytes at offset 8 .* holds {left} bytes"):
            await PlacedRequest.fetch(InferenceRequest("m", [placeholder("a", 4)]), placement, lease, SHARING)


async def test_what_cannot_be_read_is_zero(table: SharedMemoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "mapped", lambda *_: None)

    def refuse(*_: object) -> int:
        raise OSError(5, "Input/output error")

    with region(table, b"\xff" * 64), table.lease() as lease:
        request = InferenceRequest("m", [placeholder("a", 4)])
        await PlacedRequest.fetch(request, Placement({0: MemoryReference("r", 8, 4)}), lease, SHARING)
        monkeypatch.setattr(os, "preadv", refuse)
        assert bytes(request.inputs[0].data) == bytes(4)


async def test_an_input_that_waits_keeps_its_region(table: SharedMemoryTable) -> None:
    """Also when its client has gone, and the region is unregistered."""
    with region(table, bytes(range(64))):
        request = InferenceRequest("m", [placeholder("a", 4)])
        with table.lease() as lease:
            await PlacedRequest.fetch(request, Placement({0: MemoryReference("r", 8, 4)}), lease, SHARING)
        table.unregister_system("r")
        assert [one.name for one in table.system_status()] == ["r"]
        assert bytes(request.inputs[0].data) == bytes(range(8, 12))
        request.inputs.clear()
        assert table.system_status() == ()


async def test_inputs_that_are_not_read_yet_count() -> None:
    table = SharedMemoryTable(allow_registration=True, max_bytes_in_use=7)
    with region(table, bytes(64)), table.lease() as lease:
        placement = Placement({0: MemoryReference("r", 0, 4)})
        await PlacedRequest.fetch(InferenceRequest("m", [placeholder("a", 4)]), placement, lease, SHARING)
        with table.lease() as other, pytest.raises(Unavailable, match="hold 4 of at most 7 bytes"):
            await PlacedRequest.fetch(InferenceRequest("m", [placeholder("a", 4)]), placement, other, SHARING)
    table.close()
