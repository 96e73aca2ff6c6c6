"""ModelInfer calls that need no task, and what makes one need a task after all."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing
from tritonclient.grpc import service_pb2

from protocol.access.control import AccessControl
from protocol.access.forwarding import HeaderForwarding
from protocol.access.restricted import GRPC_PROTOCOL, RestrictedApis
from protocol.datatypes import DataType
from protocol.grpc.call.receiving import CALL_MEMORY, MESSAGE_MEMORY
from protocol.grpc.settings import ConnectionLimits, GrpcSettings
from protocol.limits.request_memory import RequestMemory
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from tests.protocol.grpc.caller import SERVICE, Caller, serving
from tests.protocol.grpc.client import framed
from tests.protocol.grpc.drivers import driver
from tests.protocol.grpc.edge_services import FakeTraceControl, edge_services
from tests.protocol.grpc.fakes import FakeCore
from tests.protocol.grpc.harness import DEADLINE_EXCEEDED, INTERNAL, NOT_FOUND, RESOURCE_EXHAUSTED, UNAVAILABLE

INFER = f"{SERVICE}/ModelInfer"


def request_of(model: str = "echo", request_id: str = "7", data: bytes = b"\1\2\3\4", **parameters: int) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[data])
    request.inputs.add(name="x", datatype="UINT8", shape=[len(data)])
    for key, value in parameters.items():
        request.parameters[key].int64_param = value
    serialized: bytes = request.SerializeToString()
    return serialized


def answer_of(message: bytes) -> Any:
    return service_pb2.ModelInferResponse.FromString(message)


def endings(core: FakeCore) -> list[str]:
    return [each.ending for each in core.submitted]


async def start(peers: Caller, *models: str, headers: dict[str, str] | None = None) -> list[int]:
    """Calls that the server has taken."""
    streams = [await peers.client.start_call(INFER, request_of(model), headers=headers) for model in models]
    await peers.core.wait_for_in_flight(len(models))
    return streams


async def held(peers: Caller) -> int:
    """Bytes of messages, once all is quiet."""
    await trio.testing.wait_all_tasks_blocked()
    memory = peers.connection._calls.memory
    return ConnectionLimits().max_receive_memory - memory.left


async def test_calls_again_and_again() -> None:
    """Each has the answer to what it asked, whichever form it has."""
    async with serving() as peers:
        for number in range(4):
            asked = [
                await peers.client.start_call(INFER, request_of(request_id=request_id, data=bytes([number]) * size))
                for request_id, size in [("a", 4), ("", 4), ("b", 700)]
            ]
            for stream, (request_id, size) in zip(asked, [("a", 4), ("", 4), ("b", 700)], strict=True):
                response = await peers.client.finish(stream)
                assert (response.status, response.headers[":status"]) == (0, "200")
                (message,) = response.messages
                answer = answer_of(message)
                assert (answer.id, answer.raw_output_contents[0]) == (request_id, bytes([number]) * size)
        assert endings(peers.core) == ["answered"] * 12
        assert await held(peers) == 0


async def test_answers_of_one_moment_leave_in_one_write(autojump_clock: trio.testing.MockClock) -> None:
    async with serving() as peers:
        assert (await peers.client.call(INFER, request_of())).status == 0
        streams = await start(peers, *["wait"] * 5)
        await trio.testing.wait_all_tasks_blocked()
        reads = peers.client.reads
        peers.core.gate.set()
        for stream in streams:
            assert (await peers.client.finish(stream)).status == 0
        assert peers.client.reads == reads + 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (framed(request_of("unknown")), NOT_FOUND),
        (framed(request_of("unavailable")), UNAVAILABLE),
        (framed(request_of("defect")), INTERNAL),
        (framed(request_of())[:-1], 3),
        (framed(request_of()) + b"x", 3),
        (framed(b"\xff"), 3),
        (b"\2" + framed(request_of())[1:], 3),
        (b"\1" + framed(request_of())[1:], 3),
        (b"\0\0", 3),
        (b"", 3),
    ],
)
async def test_what_is_wrong_is_said_as_ever(body: bytes, status: int) -> None:
    async with serving() as peers:
        stream = await peers.client.open(INFER, holds_back=True)
        await peers.client.send(stream, body, end=True)
        assert (await peers.client.finish(stream)).status == status
        assert (await peers.client.call(INFER, request_of())).status == 0
        assert await held(peers) == 0


@pytest.mark.parametrize(
    "parts",
    [
        {"trace": FakeTraceControl(is_on=True)},
        {"forwarding": HeaderForwarding("x-")},
        {"access": AccessControl(RestrictedApis.parse(["trace:key=value"], GRPC_PROTOCOL))},
    ],
)
async def test_services_that_look_at_each_call_take_a_task(parts: dict[str, Any]) -> None:
    async with serving(edge_services(**parts)) as peers:
        assert (await peers.client.call(INFER, request_of())).status == 0
        assert endings(peers.core) == ["answered"]


LARGE = bytes(range(256)) * 2344  # 600 kB


@pytest.mark.parametrize("cuts", [[20], [0], [3, 100, 101], [70_000, 140_000, 590_000]])
async def test_a_call_in_pieces_takes_no_task_either(cuts: list[int]) -> None:
    data = LARGE if cuts[-1] > 1000 else b"1234" * 100
    async with serving() as peers:
        body = framed(request_of(data=data))
        stream = await peers.client.open(INFER, holds_back=True)
        for start, end in pairwise([0, *cuts, len(body)]):
            await peers.client.send(stream, body[start:end], end=end == len(body))
            await trio.testing.wait_all_tasks_blocked()
        response = await peers.client.finish(stream)
        assert response.status == 0
        assert answer_of(response.messages[0]).raw_output_contents[0] == data
        assert endings(peers.core) == ["answered"]
        assert await held(peers) == 0


@pytest.mark.slow
@pytest.mark.parametrize("window", [65_535, 200_000])
async def test_windows_that_are_given_back_in_portions_never_stay_shut(window: int) -> None:
    """Neither the connection's nor a stream's, whatever is sent: small calls, large ones, and messages of a stream."""
    settings = GrpcSettings(limits=ConnectionLimits(connection_window=window, stream_window=20_000))
    async with serving(settings=settings) as peers:
        with trio.fail_after(30):
            for size in [1000] * 100 + [600_000, 10_000, 600_000]:
                assert (await peers.client.call(INFER, request_of(data=bytes(size)))).status == 0
            stream = await peers.client.open(f"{SERVICE}/ModelStreamInfer")
            response = peers.client.responses[stream]
            for number in range(150):
                await peers.client.send(stream, framed(request_of(data=bytes(1000))))
                while len(response.messages) <= number:
                    await peers.client.read()
            await peers.client.send(stream, b"", end=True)
            assert (await peers.client.finish(stream)).status == 0
            assert (await peers.client.call(INFER, request_of(data=bytes(600_000)))).status == 0
        assert await held(peers) == 0


async def begin(peers: Caller, body: bytes, **headers: str) -> int:
    """A call whose request has not ended."""
    stream = await peers.client.open(INFER, headers=headers)
    await peers.client.send(stream, body)
    await trio.testing.wait_all_tasks_blocked()
    return stream


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_request_that_ends_with_trailers(size: int) -> None:
    async with serving() as peers:
        stream = await begin(peers, framed(request_of(data=bytes(size))))
        peers.client.h2.send_headers(stream, [("some", "trailer")], end_stream=True)
        await peers.client.flush()
        assert (await peers.client.finish(stream)).status == 0
        assert endings(peers.core) == ["answered"]
        assert await held(peers) == 0


@pytest.mark.parametrize("wrong", [b"\2\0\0\0\1", framed(request_of()) + b"x"])
async def test_what_is_wrong_is_said_before_the_rest_comes(wrong: bytes) -> None:
    async with serving() as peers:
        stream = await begin(peers, wrong)
        assert (await peers.client.finish(stream)).status == 3
        assert await held(peers) == 0


async def test_a_request_that_does_not_go_on(autojump_clock: trio.testing.MockClock) -> None:
    services = edge_services()
    settings = GrpcSettings(limits=ConnectionLimits(receive_timeout=10))
    async with serving(services, settings) as peers:
        began = trio.current_time()
        stream = await begin(peers, framed(request_of())[:-1])
        response = await peers.client.finish(stream)
        assert response.status == DEADLINE_EXCEEDED
        assert "too little of it came for 10 seconds" in response.message
        assert trio.current_time() - began == pytest.approx(10)
        assert services.limits.counts() == {("grpc", "receive_timeout"): 1}
        assert await held(peers) == 0


async def test_a_request_that_goes_on_has_more_time(autojump_clock: trio.testing.MockClock) -> None:
    settings = GrpcSettings(limits=ConnectionLimits(receive_timeout=10))
    async with serving(settings=settings) as peers:
        body = framed(request_of(data=LARGE))
        stream = await begin(peers, body[:100_000])
        for start in range(100_000, len(body), 100_000):
            await trio.sleep(9)
            await peers.client.send(stream, body[start : start + 100_000], end=start + 100_000 >= len(body))
        assert (await peers.client.finish(stream)).status == 0


async def test_a_deadline_ends_a_request_that_has_not_come(autojump_clock: trio.testing.MockClock) -> None:
    async with serving() as peers:
        began = trio.current_time()
        stream = await begin(peers, framed(request_of())[:-1], **{"grpc-timeout": "2S"})
        response = await peers.client.finish(stream)
        assert (response.status, response.message) == (DEADLINE_EXCEEDED, "the call's deadline has passed")
        assert trio.current_time() - began == pytest.approx(2)
        assert await held(peers) == 0


async def test_a_request_that_is_reset_or_left_is_let_go() -> None:
    async with serving() as peers:
        first = await begin(peers, framed(request_of(data=LARGE))[:100_000])
        await begin(peers, framed(request_of(data=LARGE))[:50_000])
        assert await held(peers) == 150_000 + 2 * CALL_MEMORY
        peers.client.h2.reset_stream(first)
        await peers.client.flush()
        assert await held(peers) == 50_000 + CALL_MEMORY
        await peers.client.transport.aclose()
        assert await held(peers) == 0
        assert peers.core.submitted == []


async def test_requests_that_have_not_come_count_as_calls() -> None:
    settings = GrpcSettings(limits=ConnectionLimits(max_concurrent_streams=1))
    async with serving(settings=settings) as peers:
        peers.client.h2.remote_settings.max_concurrent_streams = 100
        body = framed(request_of())
        stream = await begin(peers, body[:-1])
        assert (await peers.client.finish(await peers.client.start_call(INFER, request_of()))).reset == 7
        await peers.client.send(stream, body[-1:], end=True)
        assert (await peers.client.finish(stream)).status == 0


async def test_a_request_in_pieces_that_holds_too_much_is_refused() -> None:
    memory = RequestMemory(120_000)
    async with serving(edge_services(memory=memory)) as peers:
        stream = await begin(peers, framed(request_of(data=LARGE))[:130_000])
        assert (await peers.client.finish(stream)).status in (RESOURCE_EXHAUSTED, UNAVAILABLE)
        await trio.testing.wait_all_tasks_blocked()
        assert memory.held == 0
        assert (await peers.client.call(INFER, request_of())).status == 0


async def test_a_reset_gives_its_call_up_and_no_other() -> None:
    async with serving() as peers:
        first, second = await start(peers, "wait", "wait")
        peers.client.h2.reset_stream(first)
        await peers.client.flush()
        await peers.core.cancellation.wait()
        peers.core.gate.set()
        assert (await peers.client.finish(second)).status == 0
        assert endings(peers.core) == ["given up", "answered"]
        assert await held(peers) == 0


async def test_a_reset_of_what_is_answered_at_that_moment() -> None:
    """The answer is there, and not delivered yet."""
    async with serving() as peers:
        (stream,) = await start(peers, "wait")
        peers.core.gate.set()
        peers.client.h2.reset_stream(stream)
        await peers.client.flush()
        await trio.testing.wait_all_tasks_blocked()
        assert endings(peers.core)[0] in ("given up", "answered")
        assert (await peers.client.call(INFER, request_of())).status == 0
        assert await held(peers) == 0


async def test_a_client_that_leaves_has_its_calls_given_up() -> None:
    async with serving() as peers:
        await start(peers, "wait", "forever")
        assert await held(peers) > 0
        await peers.client.transport.aclose()
        await peers.core.cancellation.wait()
        assert await held(peers) == 0
        assert endings(peers.core) == ["given up"] * 2


async def test_deadlines_end_calls_in_time(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each at its own, in whatever order they come, and nothing is sent for one that was answered. Each leaves a line
    in the log."""
    async with serving() as peers:
        began = trio.current_time()
        (slow,) = await start(peers, "forever", headers={"grpc-timeout": "30S"})
        quick = await peers.client.start_call(INFER, request_of("forever"), headers={"grpc-timeout": "500m"})
        kept = await peers.client.start_call(INFER, request_of("wait"), headers={"grpc-timeout": "600m"})
        assert (await peers.client.call(INFER, request_of(), headers={"grpc-timeout": "100m"})).status == 0
        response = await peers.client.finish(quick)
        assert (response.status, response.message) == (DEADLINE_EXCEEDED, "the call's deadline has passed")
        assert trio.current_time() - began == pytest.approx(0.5)
        peers.core.gate.set()
        assert (await peers.client.finish(kept)).status == 0
        assert (await peers.client.finish(slow)).status == DEADLINE_EXCEEDED
        assert trio.current_time() - began == pytest.approx(30)
        assert sorted(endings(peers.core)) == ["answered", "answered", "given up", "given up"]
        assert await held(peers) == 0
    lines = [line for line in caplog.messages if "failed" in line]
    assert [line.partition(" id ")[0] for line in lines] == [
        "gRPC ModelInfer failed: model 'forever', version 'latest',"
    ] * 2
    times = ("500.000", "30000.000") if driver.has_fast_path else (r"\d+.\d+", r"\d+.\d+")  # not of the mocked clock
    for line, ms in zip(lines, times, strict=True):
        assert re.search(f"status DEADLINE_EXCEEDED, after {ms} ms: the call's deadline has passed$", line)


async def test_draining_waits_for_calls_without_a_task(autojump_clock: trio.testing.MockClock) -> None:
    async with serving() as peers:
        (stream,) = await start(peers, "wait")
        peers.connection.drain()
        late = await peers.client.start_call(INFER, request_of())
        assert (await peers.client.finish(late)).status == UNAVAILABLE
        peers.core.gate.set()
        assert (await peers.client.finish(stream)).status == 0
        await peers.client.read_to_end()
        assert endings(peers.core) == ["answered"]


async def test_a_connection_that_retires_waits_for_calls_without_a_task(autojump_clock: trio.testing.MockClock) -> None:
    settings = GrpcSettings(limits=ConnectionLimits(max_connection_age=1, max_connection_idle=100))
    async with serving(settings=settings) as peers:
        (stream,) = await start(peers, "wait")
        await trio.sleep(60)
        peers.core.gate.set()
        assert (await peers.client.finish(stream)).status == 0
        await peers.client.read_to_end()


async def test_calls_without_a_task_count_as_calls() -> None:
    settings = GrpcSettings(limits=ConnectionLimits(max_concurrent_streams=2))
    async with serving(settings=settings) as peers:
        peers.client.h2.remote_settings.max_concurrent_streams = 100
        streams = await start(peers, "wait", "wait")
        refused = await peers.client.start_call(INFER, request_of())
        assert (await peers.client.finish(refused)).reset == 7  # REFUSED_STREAM
        peers.core.gate.set()
        assert [(await peers.client.finish(stream)).status for stream in streams] == [0, 0]


async def test_memory_is_bounded() -> None:
    one = len(framed(request_of("wait")))
    async with serving(edge_services(memory=RequestMemory(CALL_MEMORY + MESSAGE_MEMORY + one + 10))) as peers:
        (stream,) = await start(peers, "wait")
        assert (await peers.client.call(INFER, request_of())).status in (RESOURCE_EXHAUSTED, UNAVAILABLE)
        peers.core.gate.set()
        assert (await peers.client.finish(stream)).status == 0
        assert (await peers.client.call(INFER, request_of())).status == 0


async def test_a_message_over_the_limit_is_refused() -> None:
    settings = GrpcSettings(limits=ConnectionLimits(max_message_size=20))
    async with serving(settings=settings) as peers:
        assert (await peers.client.call(INFER, request_of())).status == RESOURCE_EXHAUSTED
        assert peers.core.submitted == []


class Answering(FakeCore):
    """Gives everything the same outputs."""

    outputs: tuple[Tensor, ...] = ()

    async def answer(self, request: InferenceRequest) -> InferenceResponse:
        await trio.lowlevel.checkpoint()
        return InferenceResponse("echo", 1, list(self.outputs), request.id)


async def test_an_answer_that_waits_for_its_client(autojump_clock: trio.testing.MockClock) -> None:
    """Larger than the client's window; it may still be reset, or come too late."""
    core = Answering()
    data = bytes(range(256)) * 1000
    core.outputs = (Tensor("x", DataType.UINT8, (len(data),), data),)
    async with serving(edge_services(core)) as peers:
        peers.core.tasks = core.tasks
        response = await peers.client.call(INFER, request_of())
        assert answer_of(response.messages[0]).raw_output_contents[0] == data
        peers.client.acknowledges = False
        late = await peers.client.start_call(INFER, request_of(), headers={"grpc-timeout": "1S"})
        assert (await peers.client.finish(late)).status == DEADLINE_EXCEEDED
        assert await held(peers) == 0


@pytest.mark.parametrize("broken", [None, "text"])
async def test_an_answer_that_cannot_be_encoded(broken: Any, caplog: pytest.LogCaptureFixture) -> None:
    core = Answering()
    core.outputs = (Tensor("x", DataType.UINT8, (1,), broken),)
    async with serving(edge_services(core)) as peers:
        for _ in range(2):
            assert (await peers.client.call(INFER, request_of())).status == INTERNAL
        assert "failed unexpectedly" in caplog.text
        core.outputs = ()
        assert (await peers.client.call(INFER, request_of())).status == 0
        assert await held(peers) == 0


async def test_compressed_responses_take_a_task() -> None:
    settings = replace(GrpcSettings(), compression_level=1)
    async with serving(settings=settings) as peers:
        assert (await peers.client.call(INFER, request_of(data=bytes(1000)))).status == 0
        assert endings(peers.core) == ["answered"]
