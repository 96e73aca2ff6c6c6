"""Shared memory over gRPC: the calls about regions, and tensors in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
import trio.testing
from tritonclient.grpc import service_pb2

from protocol.datatypes import DataType
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from protocol.shared_memory.table import SharedMemoryTable
from tests.protocol.grpc.caller import SERVICE, Caller, serving
from tests.protocol.grpc.client import framed
from tests.protocol.grpc.edge_services import edge_services
from tests.protocol.grpc.fakes import FakeCore
from tests.protocol.grpc.harness import INVALID_ARGUMENT, NOT_FOUND, UNAVAILABLE, UNIMPLEMENTED
from tests.protocol.shared_memory.conftest import ClientSegment

ALREADY_EXISTS = 6
LARGE = 1_048_577
MakeSegment = Callable[[bytes], ClientSegment]


@pytest.fixture
def segments() -> Iterator[MakeSegment]:
    made: list[ClientSegment] = []

    def make(contents: bytes) -> ClientSegment:
        made.append(ClientSegment(contents))
        return made[-1]

    yield make
    for segment in made:
        segment.unlink()


def registration(segment: ClientSegment, name: str = "r", **fields: Any) -> Any:
    values = {"offset": 0, "byte_size": 64, **fields}
    return service_pb2.SystemSharedMemoryRegisterRequest(name=name, key=segment.key, **values)


def placed(message: Any, offset: int, size: int, region: str = "r") -> None:
    message.parameters["shared_memory_region"].string_param = region
    message.parameters["shared_memory_byte_size"].int64_param = size
    if offset:
        message.parameters["shared_memory_offset"].int64_param = offset


def infer_request(model: str = "echo", *, size: int = 8, **fields: Any) -> Any:
    """Input at 0, output at 32."""
    request = service_pb2.ModelInferRequest(model_name=model, **fields)
    placed(request.inputs.add(name="x", datatype="UINT8", shape=[size]), 0, size)
    placed(request.outputs.add(name="x"), 32, size)
    return request


async def test_register_status_and_unregister(segments: MakeSegment) -> None:
    async with serving() as peers:
        await peers.ask("SystemSharedMemoryRegister", registration(segments(bytes(64)), "b", byte_size=32))
        await peers.ask("SystemSharedMemoryRegister", registration(segments(bytes(64)), "a", offset=8, byte_size=16))
        regions = (await peers.ask("SystemSharedMemoryStatus")).regions
        assert {name: (one.name, one.offset, one.byte_size) for name, one in regions.items()} == {
            "a": ("a", 8, 16),
            "b": ("b", 0, 32),
        }
        one = service_pb2.SystemSharedMemoryStatusRequest(name="a")
        assert regions["a"].key.startswith("/trioton_test_")
        assert list((await peers.ask("SystemSharedMemoryStatus", one)).regions) == ["a"]
        await peers.ask("SystemSharedMemoryUnregister", service_pb2.SystemSharedMemoryUnregisterRequest(name="a"))
        await peers.ask("SystemSharedMemoryUnregister", service_pb2.SystemSharedMemoryUnregisterRequest(name="gone"))
        assert list((await peers.ask("SystemSharedMemoryStatus")).regions) == ["b"]
        await peers.ask("SystemSharedMemoryUnregister")
        assert not (await peers.ask("SystemSharedMemoryStatus")).regions


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"name": ""}, INVALID_ARGUMENT, "'region name' is necessary to register system shared memory region"),
    ({"name": "a\0b"}, INVALID_ARGUMENT, "it must be text without NUL"),
    ({"key": "/no_such_segment"}, INVALID_ARGUMENT, "Unable to open shared memory region: '/no_such_segment'"),
    ({"key": "///"}, INVALID_ARGUMENT, "invalid shm key '///'"),
    ({"key": "/../../etc/passwd"}, INVALID_ARGUMENT, "invalid shm key"),
    ({"key": "/a\0b"}, INVALID_ARGUMENT, "invalid shm key"),
    ({"key": "/triton_python_backend_shm_region_1"}, INVALID_ARGUMENT, "reserved prefix"),
    ({"byte_size": 65}, INVALID_ARGUMENT, "failed to register shared memory region 'new': invalid args"),
    ({"offset": 2**64 - 1, "byte_size": 2**64 - 1}, INVALID_ARGUMENT, "invalid args"),
    ({"byte_size": 0}, INVALID_ARGUMENT, "invalid args"),
    ({"name": "taken"}, ALREADY_EXISTS, "shared memory region 'taken' already in manager"),
]


@pytest.mark.parametrize(("fields", "status", "message"), REFUSED)
async def test_registrations_that_are_refused(
    fields: dict[str, Any], status: int, message: str, segments: MakeSegment
) -> None:
    segment = segments(bytes(64))
    async with serving() as peers:
        await peers.ask("SystemSharedMemoryRegister", registration(segment, "taken"))
        request = registration(segment, "new")
        for name, value in fields.items():
            setattr(request, name, value)
        found = await peers.refusal("SystemSharedMemoryRegister", request)
        assert found[0] == status
        assert message in found[1]
        assert list((await peers.ask("SystemSharedMemoryStatus")).regions) == ["taken"]


async def test_unknown_regions_have_no_status() -> None:
    async with serving() as peers:
        system = service_pb2.SystemSharedMemoryStatusRequest(name="r")
        expected = (NOT_FOUND, "Unable to find system shared memory region: 'r'")
        assert await peers.refusal("SystemSharedMemoryStatus", system) == expected
        cuda = service_pb2.CudaSharedMemoryStatusRequest(name="r")
        expected = (NOT_FOUND, "Unable to find cuda shared memory region: 'r'")
        assert await peers.refusal("CudaSharedMemoryStatus", cuda) == expected


async def test_a_system_region_is_no_cuda_region(segments: MakeSegment) -> None:
    async with serving() as peers:
        await peers.ask("SystemSharedMemoryRegister", registration(segments(bytes(64))))
        status, message = await peers.refusal(
            "CudaSharedMemoryStatus", service_pb2.CudaSharedMemoryStatusRequest(name="r")
        )
        assert (status, "registered as system shared memory" in message) == (NOT_FOUND, True)
        await peers.ask("CudaSharedMemoryUnregister")
        assert list((await peers.ask("SystemSharedMemoryStatus")).regions) == ["r"]


@pytest.mark.parametrize("handle", [b"", b"short", bytes(64), bytes(65)])
async def test_cuda_handles_that_are_none(handle: bytes) -> None:
    """Without a GPU every handle is one."""
    async with serving() as peers:
        request = service_pb2.CudaSharedMemoryRegisterRequest(name="r", raw_handle=handle, device_id=0, byte_size=64)
        status, message = await peers.refusal("CudaSharedMemoryRegister", request)
        assert status == INVALID_ARGUMENT
        assert "GPUs not supported" in message or "handle" in message
        assert not (await peers.ask("CudaSharedMemoryStatus")).regions
        await peers.ask("CudaSharedMemoryUnregister", service_pb2.CudaSharedMemoryUnregisterRequest(name="r"))


@pytest.mark.parametrize("kind", ["System", "Cuda"])
async def test_servers_may_not_allow_it(kind: str) -> None:
    """Status works all the same."""
    services = edge_services(shared_memory=SharedMemoryTable(allow_registration=False))
    expected = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
    async with serving(services) as peers:
        for call in ("Register", "Unregister"):
            assert await peers.refusal(f"{kind}SharedMemory{call}") == (UNIMPLEMENTED, expected)
        assert not (await peers.ask(f"{kind}SharedMemoryStatus")).regions


async def test_tensors_in_shared_memory(segments: MakeSegment) -> None:
    """The output says what it is, and has neither data nor parameters."""
    segment = segments(bytes(range(64)))
    async with serving() as peers:
        await peers.ask("SystemSharedMemoryRegister", registration(segment))
        message = await peers.ask("ModelInfer", infer_request(id="7"))
        assert (message.id, list(message.raw_output_contents)) == ("7", [b""])
        (output,) = message.outputs
        assert (output.name, output.datatype, list(output.shape)) == ("x", "UINT8", [8])
        assert not output.parameters
        assert not output.HasField("contents")
        assert segment.contents == bytes(range(32)) + bytes(range(8)) + bytes(range(40, 64))


async def test_outputs_in_shared_memory_and_not(segments: MakeSegment) -> None:
    """One entry for each output, empty for the one that is elsewhere."""
    segment = segments(bytes(64))
    request = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[b"aa", b"bb", b"cc"])
    for name in "abc":
        request.inputs.add(name=name, datatype="UINT8", shape=[2])
    placed(request.outputs.add(name="b"), 4, 2)
    async with serving() as peers:
        await peers.ask("SystemSharedMemoryRegister", registration(segment))
        message = await peers.ask("ModelInfer", request)
        assert list(message.raw_output_contents) == [b"aa", b"", b"cc"]
        assert segment.contents[4:6] == b"bb"


async def test_references_that_lead_nowhere(segments: MakeSegment) -> None:
    async with serving() as peers:
        expected = (NOT_FOUND, "Unable to find shared memory region: 'r'")
        assert await peers.refusal("ModelInfer", infer_request()) == expected
        await peers.ask("SystemSharedMemoryRegister", registration(segments(bytes(64)), byte_size=36))
        expected = (INVALID_ARGUMENT, "Invalid offset + byte size for shared memory region: 'r'")
        assert await peers.refusal("ModelInfer", infer_request()) == expected
        assert peers.core.requests == []


async def test_a_region_outlives_its_unregistration_while_a_request_uses_it(segments: MakeSegment) -> None:
    segment = segments(bytes(range(64)))
    async with serving() as peers:
        await peers.ask("SystemSharedMemoryRegister", registration(segment))
        call = await peers.client.start_call(f"{SERVICE}/ModelInfer", infer_request("wait").SerializeToString())
        await peers.core.wait_for_in_flight(1)
        await peers.ask("SystemSharedMemoryUnregister", service_pb2.SystemSharedMemoryUnregisterRequest(name="r"))
        assert list((await peers.ask("SystemSharedMemoryStatus")).regions) == ["r"]
        expected = (ALREADY_EXISTS, "shared memory region 'r' already in manager")
        assert await peers.refusal("SystemSharedMemoryRegister", registration(segment)) == expected
        peers.core.gate.set()
        assert (await peers.client.finish(call)).status == 0
        assert segment.contents[32:40] == bytes(range(8))
        assert not (await peers.ask("SystemSharedMemoryStatus")).regions


async def test_a_client_that_goes_gives_its_regions_back(
    segments: MakeSegment, autojump_clock: trio.testing.MockClock
) -> None:
    table = SharedMemoryTable(allow_registration=True)
    async with serving(edge_services(shared_memory=table)) as peers:
        await peers.ask("SystemSharedMemoryRegister", registration(segments(bytes(64))))
        call = await peers.client.start_call(f"{SERVICE}/ModelInfer", infer_request("forever").SerializeToString())
        await peers.core.wait_for_in_flight(1)
        table.unregister_system()
        assert len(table.system_status()) == 1
        peers.client.h2.reset_stream(call)
        await peers.client.flush()
        await peers.core.cancellation.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert table.system_status() == ()


@pytest.mark.parametrize("truncated_to", [0, 4, 36])
async def test_a_region_that_its_client_truncates(truncated_to: int, segments: MakeSegment) -> None:
    """Before the inputs are read, or before the outputs are written."""
    segment = segments(bytes(64))
    async with serving() as peers:
        await peers.ask("SystemSharedMemoryRegister", registration(segment))
        segment.truncate(truncated_to)
        status, message = await peers.refusal("ModelInfer", infer_request())
        assert (status, "was truncated" in message) == (INVALID_ARGUMENT, True)


async def stream_answers(peers: Caller, *requests: Any) -> list[Any]:
    stream = await peers.client.open(f"{SERVICE}/ModelStreamInfer")
    data = b"".join(framed(request.SerializeToString()) for request in requests)
    await peers.client.send(stream, data, end=True)
    response = await peers.client.finish(stream)
    assert response.status == 0
    return [service_pb2.ModelStreamInferResponse.FromString(message) for message in response.messages]


async def test_streams_use_it_too(segments: MakeSegment) -> None:
    """Each request for itself; a wrong reference is answered and the stream goes on."""
    segment = segments(bytes(range(64)))
    async with serving() as peers:
        await peers.ask("SystemSharedMemoryRegister", registration(segment))
        wrong = infer_request(id="2")
        wrong.inputs[0].parameters["shared_memory_region"].string_param = "other"
        first, second, third = await stream_answers(peers, infer_request(id="1"), wrong, infer_request(id="3"))
        assert list(first.infer_response.raw_output_contents) == [b""]
        assert second.error_message == "Unable to find shared memory region: 'other'"
        assert (third.infer_response.id, third.error_message) == ("3", "")
        assert segment.contents[32:40] == bytes(range(8))


async def test_every_response_of_a_decoupled_model_goes_to_the_region(segments: MakeSegment) -> None:
    table = SharedMemoryTable(allow_registration=True)
    segment = segments(bytes(range(64)))
    async with serving(edge_services(shared_memory=table)) as peers:
        await peers.ask("SystemSharedMemoryRegister", registration(segment))
        request = infer_request("many")
        request.parameters["responses"].int64_param = 3
        answers = await stream_answers(peers, request)
        assert [list(one.infer_response.raw_output_contents) for one in answers] == [[b""]] * 3
        assert segment.contents[32:40] == bytes(range(8))
        table.unregister_system()
        assert table.system_status() == ()


async def test_classes_over_grpc() -> None:
    """The fake core's model has batches, and two labels."""
    request = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[bytes([3, 9, 5, 7, 1, 2])])
    request.inputs.add(name="x", datatype="UINT8", shape=[2, 3])
    request.outputs.add(name="x").parameters["classification"].int64_param = 2
    async with serving() as peers:
        message = await peers.ask("ModelInfer", request)
        (output,) = message.outputs
        assert (output.datatype, list(output.shape)) == ("BYTES", [2, 2])
        texts = [b"9:1:dog", b"5:2", b"7:0:cat", b"2:2"]
        assert list(message.raw_output_contents) == [b"".join(len(t).to_bytes(4, "little") + t for t in texts)]


async def are_regions_free(peers: Caller) -> bool:
    """No request holds one any more; one may still be in a thread."""
    await peers.ask("SystemSharedMemoryUnregister")
    with trio.move_on_after(10):
        while (await peers.ask("SystemSharedMemoryStatus")).regions:  # noqa: ASYNC110 (nobody tells of it)
            await trio.sleep(0.01)
        return True
    return False


async def test_calls_without_a_task_use_shared_memory_too(segments: MakeSegment) -> None:
    """Whether they are answered, fail, or are given up, nothing of it is held in the end."""
    async with serving() as peers:
        segment = segments(b"abcdefgh" + bytes(56))
        await peers.ask("SystemSharedMemoryRegister", registration(segment))
        for _ in range(3):
            await peers.ask("ModelInfer", infer_request())
        assert segment.contents[32:40] == b"abcdefgh"
        assert (await peers.refusal("ModelInfer", infer_request("unavailable")))[0] == UNAVAILABLE
        stream = await peers.client.start_call(f"{SERVICE}/ModelInfer", infer_request("forever").SerializeToString())
        await peers.core.wait_for_in_flight(1)
        peers.client.h2.reset_stream(stream)
        await peers.client.flush()
        await peers.core.cancellation.wait()
        assert [each.ending for each in peers.core.submitted] == ["answered"] * 4 + ["given up"]
        assert await are_regions_free(peers)


class Doubling(FakeCore):
    """Gives a mebibyte and more, when the gate is open."""

    async def answer(self, request: InferenceRequest) -> InferenceResponse:
        await self.gate.wait()
        outputs = [Tensor("x", DataType.UINT8, (LARGE,), b"y" * LARGE)]
        return InferenceResponse(request.model_name, 1, outputs, request.id)


@pytest.mark.parametrize("is_reset", [False, True])
async def test_outputs_that_take_a_thread(segments: MakeSegment, is_reset: bool) -> None:
    """The call may be reset before the thread is there."""
    async with serving(edge_services(Doubling())) as peers:
        segment = segments(bytes(LARGE + 64))
        await peers.ask("SystemSharedMemoryRegister", registration(segment, byte_size=LARGE + 64))
        request = service_pb2.ModelInferRequest(model_name="echo")
        placed(request.inputs.add(name="x", datatype="UINT8", shape=[8]), 0, 8)
        placed(request.outputs.add(name="x"), 8, LARGE)
        stream = await peers.client.start_call(f"{SERVICE}/ModelInfer", request.SerializeToString())
        await peers.core.came.wait()
        peers.core.gate.set()
        if is_reset:
            peers.client.h2.reset_stream(stream)
            await peers.client.flush()
        else:
            assert (await peers.client.finish(stream)).status == 0
            assert segment.contents[8 : 8 + LARGE] == b"y" * LARGE
        assert len(peers.core.submitted) == 1
        assert await are_regions_free(peers)
