"""ModelStreamInfer: order, errors inside the stream, the bound on requests in flight, and how it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio
import trio.testing
from tritonclient.grpc import service_pb2

from protocol.grpc.codec import Codec
from protocol.grpc.connection import Connection, ConnectionLimits
from protocol.grpc.server import GrpcSettings, grpc_handlers
from protocol.grpc.stream import SHUTTING_DOWN
from tests.protocol.grpc.client import Client, Response, framed
from tests.protocol.grpc.fakes import FakeCore
from tests.protocol.grpc.harness import INVALID_ARGUMENT, UNAVAILABLE

PATH = "/inference.GRPCInferenceService/ModelStreamInfer"


@dataclass
class Served:
    client: Client
    core: FakeCore
    connection: Connection


@asynccontextmanager
async def served(max_in_flight: int = 128) -> AsyncIterator[Served]:
    client_end, server_end = trio.testing.memory_stream_pair()
    core = FakeCore()
    handlers = grpc_handlers(core, GrpcSettings(max_in_flight_per_stream=max_in_flight))
    connection = Connection(server_end, handlers, Codec(), ConnectionLimits())
    client = Client(client_end)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        await client.start()
        yield Served(client, core, connection)
        await client_end.aclose()


def request(request_id: str, model: str = "echo", **fields: Any) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id, **fields)
    message.inputs.add(name="x", datatype="INT32", shape=[1])
    message.raw_input_contents.append(b"\1\2\3\4")
    return framed(message.SerializeToString())


def responses_of(response: Response) -> list[Any]:
    return [service_pb2.ModelStreamInferResponse.FromString(message) for message in response.messages]


def briefly(response: Response) -> list[tuple[str, str]]:
    """Id and error message of each response; all must be marked as final."""
    found = responses_of(response)
    assert all(one.infer_response.parameters["triton_final_response"].bool_param for one in found)
    return [(one.infer_response.id, one.error_message) for one in found]


async def test_every_request_is_answered_and_then_the_stream_ends(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as peers:
        stream = await peers.client.open(PATH)
        await peers.client.send(stream, request("a") + request("b") + request("c"), end=True)
        response = await peers.client.finish(stream)
        assert briefly(response) == [("a", ""), ("b", ""), ("c", "")]
        assert response.status == 0
        first = responses_of(response)[0].infer_response
        assert (first.model_name, first.model_version, list(first.raw_output_contents)) == ("echo", "1", [b"\1\2\3\4"])
        assert first.parameters["steps"].int64_param == 1


async def test_requests_reach_the_core_in_order(autojump_clock: trio.testing.MockClock) -> None:
    """Sequences depend on it."""
    async with served() as peers:
        names = [str(number) for number in range(100)]
        stream = await peers.client.open(PATH)
        await peers.client.send(stream, b"".join(map(request, names)), end=True)
        assert [name for name, _ in briefly(await peers.client.finish(stream))] == names
        assert [one.id for one in peers.core.requests] == names


async def test_answers_keep_the_order_of_requests(autojump_clock: trio.testing.MockClock) -> None:
    """A later request that is done first waits for the earlier one."""
    async with served() as peers:
        stream = await peers.client.open(PATH)
        await peers.client.send(stream, request("slow", "wait") + request("quick"), end=True)
        await trio.testing.wait_all_tasks_blocked()
        assert [one.id for one in peers.core.requests] == ["slow", "quick"]
        peers.core.gate.set()
        assert briefly(await peers.client.finish(stream)) == [("slow", ""), ("quick", "")]


async def test_an_error_is_answered_and_the_stream_goes_on(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the request, the model or the server is at fault."""
    broken = framed(b"\x0a\x05ab")
    async with served() as peers:
        stream = await peers.client.open(PATH)
        requests = [
            request("1", "unavailable", model_version="1"),
            request("2", model_version="x"),
            broken,
            request("4", "unknown"),
            request("5", "defect"),
            request("6"),
        ]
        await peers.client.send(stream, b"".join(requests), end=True)
        response = await peers.client.finish(stream)
        assert response.status == 0
        found = briefly(response)
        assert [name for name, _ in found] == ["1", "2", "", "4", "5", "6"]
        messages = [message for _, message in found]
        assert messages[0] == "model 'unavailable' is restarting"
        assert "failed to get model version from specified version string 'x'" in messages[1]
        assert "is not a valid inference.ModelInferRequest message" in messages[2]
        assert messages[3] == "Request for unknown model: 'unknown' is not found"
        assert messages[4] == "the server failed unexpectedly; its log has the details"
        assert messages[5] == ""
        failed = responses_of(response)[0].infer_response
        assert (failed.model_name, failed.model_version, len(failed.outputs)) == ("unavailable", "1", 0)
        assert "a defect of the test" in caplog.text


async def test_no_more_than_the_limit_is_in_flight(autojump_clock: trio.testing.MockClock) -> None:
    """The others stay unread until there is room."""
    async with served(max_in_flight=3) as peers:
        stream = await peers.client.open(PATH)
        await peers.client.send(stream, b"".join(request(str(n), "wait") for n in range(10)), end=True)
        await trio.testing.wait_all_tasks_blocked()
        assert peers.core.in_flight == 3
        peers.core.gate.set()
        assert len(briefly(await peers.client.finish(stream))) == 10
        assert peers.core.most_in_flight == 3


async def test_a_reset_cancels_every_request_in_flight(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as peers:
        stream = await peers.client.open(PATH)
        await peers.client.send(stream, request("a", "forever") + request("b", "forever"))
        await trio.testing.wait_all_tasks_blocked()
        peers.client.h2.reset_stream(stream)
        await peers.client.flush()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(peers.core.cancelled) == ["a", "b"]


async def test_a_deadline_holds_for_the_whole_stream(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as peers:
        stream = await peers.client.open(PATH, {"grpc-timeout": "2S"})
        await peers.client.send(stream, request("a") + request("b", "forever"))
        response = await peers.client.finish(stream)
        assert briefly(response) == [("a", "")]
        assert response.status == 4
        assert peers.core.cancelled == ["b"]


async def test_a_broken_frame_ends_the_stream_after_the_answers(autojump_clock: trio.testing.MockClock) -> None:
    """There is no telling where the next message would begin."""
    async with served() as peers:
        stream = await peers.client.open(PATH)
        await peers.client.send(stream, request("a", "wait") + framed(b"x", flag=9))
        await trio.testing.wait_all_tasks_blocked()
        peers.core.gate.set()
        response = await peers.client.finish(stream)
        assert briefly(response) == [("a", "")]
        assert response.status == INVALID_ARGUMENT


async def test_clients_can_ask_for_the_real_status(autojump_clock: trio.testing.MockClock) -> None:
    """`triton_grpc_error`: a failure of the model ends the stream with its status, in order, and cancels the rest."""
    async with served() as peers:
        stream = await peers.client.open(PATH, {"triton_grpc_error": "true"})
        names = ["echo", "unknown", "wait", "unavailable", "forever"]
        await peers.client.send(stream, b"".join(request(name, name) for name in names))
        await trio.testing.wait_all_tasks_blocked()
        peers.core.gate.set()
        response = await peers.client.finish(stream)
        assert [name for name, _ in briefly(response)] == ["echo", "unknown", "wait"]
        assert (response.status, response.message) == (UNAVAILABLE, "model 'unavailable' is restarting")
        assert peers.core.cancelled == ["forever"]


@pytest.mark.parametrize("value", ["false", "True", "1"])
async def test_other_values_do_not_ask_for_it(value: str, autojump_clock: trio.testing.MockClock) -> None:
    async with served() as peers:
        stream = await peers.client.open(PATH, {"triton_grpc_error": value})
        await peers.client.send(stream, request("a", "unavailable"), end=True)
        response = await peers.client.finish(stream)
        assert (response.status, len(response.messages)) == (0, 1)


async def test_draining_answers_what_is_in_flight_and_refuses_what_was_not_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The stream then ends, so that an idle client does not hold the server up."""
    async with served(max_in_flight=1) as peers:
        stream = await peers.client.open(PATH)
        await peers.client.send(stream, request("a", "wait") + request("b"))
        await trio.testing.wait_all_tasks_blocked()
        peers.connection.drain()
        await trio.testing.wait_all_tasks_blocked()
        peers.core.gate.set()
        response = await peers.client.finish(stream)
        assert briefly(response) == [("a", ""), ("b", SHUTTING_DOWN)]
        assert (response.status, response.message) == (UNAVAILABLE, SHUTTING_DOWN)
