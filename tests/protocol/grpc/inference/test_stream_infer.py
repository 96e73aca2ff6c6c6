"""ModelStreamInfer: order, errors inside the stream, the bound on requests in flight, and how it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from tritonclient.grpc import service_pb2

from protocol.grpc.call.receiving import CALL_MEMORY, MESSAGE_MEMORY
from protocol.grpc.call.stream import SHUTTING_DOWN
from protocol.grpc.settings import ConnectionLimits, GrpcSettings
from tests.protocol.grpc.caller import Caller, serving
from tests.protocol.grpc.client import Response, framed
from tests.protocol.grpc.drivers import driver
from tests.protocol.grpc.harness import INVALID_ARGUMENT, UNAVAILABLE

PATH = "/inference.GRPCInferenceService/ModelStreamInfer"


@asynccontextmanager
async def served(max_in_flight: int = 128) -> AsyncIterator[Caller]:
    async with serving(settings=GrpcSettings(max_in_flight_per_stream=max_in_flight)) as peers:
        yield peers


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


# Decoupled models.


def many(request_id: str, model: str = "many", *, empty_final: bool | None = None, **parameters: Any) -> bytes:
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id, model_version="1")
    for key, value in parameters.items():
        if isinstance(value, int):
            message.parameters[key].int64_param = value
        else:
            message.parameters[key].string_param = value
    if empty_final is not None:
        message.parameters["triton_enable_empty_final_response"].bool_param = empty_final
    return framed(message.SerializeToString())


def told(response: Response) -> list[tuple[str, int | str, bool]]:
    """Of each response: id, its number (or error, or `empty`), and whether it is the last of its request."""
    found = []
    for one in responses_of(response):
        inner = one.infer_response
        content = inner.parameters["number"].int64_param if "number" in inner.parameters else "empty"
        found.append((inner.id, one.error_message or content, inner.parameters["triton_final_response"].bool_param))
    return found


async def stream_of(peers: Caller, *requests: bytes, headers: dict[str, str] | None = None) -> Response:
    stream = await peers.client.open(PATH, headers)
    await peers.client.send(stream, b"".join(requests), end=True)
    return await peers.client.finish(stream)


async def test_a_decoupled_model_answers_many_times(autojump_clock: trio.testing.MockClock) -> None:
    """The last response says that it is."""
    async with served() as peers:
        response = await stream_of(peers, many("a", responses=3))
        assert told(response) == [("a", 0, False), ("a", 1, False), ("a", 2, True)]
        assert response.status == 0


ENDS: list[tuple[int, bool | None, list[tuple[str, int | str, bool]]]] = [
    (1, True, [("a", 0, False), ("a", "empty", True)]),
    (1, False, [("a", 0, False)]),
    (1, None, [("a", 0, False)]),
    (0, True, [("a", "empty", True)]),
    (0, None, []),
]


@pytest.mark.parametrize(("responses", "wanted", "expected"), ENDS)
async def test_a_final_flag_alone_is_told_to_who_wants_it(
    responses: int, wanted: bool | None, expected: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with served() as peers:
        response = await stream_of(peers, many("a", responses=responses, end="flag", empty_final=wanted))
        assert told(response) == expected
        assert response.status == 0


async def test_an_empty_final_response_says_whose_it_is(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as peers:
        response = await stream_of(peers, many("a", responses=0, end="flag", empty_final=True))
        (one,) = responses_of(response)
        inner = one.infer_response
        assert (inner.id, inner.model_name, inner.model_version, len(inner.outputs)) == ("a", "many", "1", 0)


async def test_a_model_with_one_response_has_no_empty_final(autojump_clock: trio.testing.MockClock) -> None:
    message = service_pb2.ModelInferRequest(model_name="echo", id="a")
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    async with served() as peers:
        assert told(await stream_of(peers, framed(message.SerializeToString()))) == [("a", "empty", True)]


async def test_an_error_after_responses_is_the_last_of_them(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as peers:
        response = await stream_of(peers, many("a", responses=2, failure="it broke"), request("b"))
        found = [one for one in told(response) if one[0] == "a"]
        assert found == [("a", 0, False), ("a", 1, False), ("a", "it broke", True)]
        assert response.status == 0


async def test_decoupled_models_wait_for_nobody(autojump_clock: trio.testing.MockClock) -> None:
    """Neither for models with one response nor for one another; those still keep their order."""
    async with served() as peers:
        stream = await peers.client.open(PATH)
        requests = [
            request("slow", "wait"),
            many("waiting", "many_wait", responses=2),
            many("quick", responses=2),
            request("after"),
        ]
        await peers.client.send(stream, b"".join(requests), end=True)
        await trio.testing.wait_all_tasks_blocked()
        await peers.client.read()
        early = told(peers.client.responses[stream])
        assert early == [("waiting", 0, False), ("quick", 0, False), ("quick", 1, True)]
        peers.core.gate.set()
        late = told(await peers.client.finish(stream))[3:]
        assert ("waiting", 1, True) in late
        assert [name for name, _, _ in late if name != "waiting"] == ["slow", "after"]


async def test_large_responses_of_many_requests_do_not_mix(autojump_clock: trio.testing.MockClock) -> None:
    """Each is whole, though all are larger than what may be sent at once."""
    requests = []
    for number in range(6):
        message = service_pb2.ModelInferRequest(model_name="many", id=str(number))
        message.inputs.add(name="x", datatype="UINT8", shape=[200_000])
        message.raw_input_contents.append(bytes([number]) * 200_000)
        message.parameters["responses"].int64_param = 3
        requests.append(framed(message.SerializeToString()))
    async with served() as peers:
        found = responses_of(await stream_of(peers, *requests))
        assert len(found) == 18
        for one in found:
            assert one.infer_response.raw_output_contents[0] == bytes([int(one.infer_response.id)]) * 200_000


async def test_a_slow_reader_slows_its_model_down(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as peers:
        peers.client.acknowledges = False
        message = service_pb2.ModelInferRequest(model_name="many")
        message.inputs.add(name="x", datatype="UINT8", shape=[10_000])
        message.raw_input_contents.append(bytes(10_000))
        message.parameters["responses"].int64_param = 10_000
        stream = await peers.client.open(PATH)
        await peers.client.send(stream, framed(message.SerializeToString()), end=True)
        await trio.testing.wait_all_tasks_blocked()
        assert peers.core.responded < 20
        peers.client.h2.reset_stream(stream)
        await peers.client.flush()
        await peers.core.cancellation.wait()


async def test_a_client_that_never_reads_loses_its_stream(autojump_clock: trio.testing.MockClock) -> None:
    """Reset after the send timeout; what it asked for is cancelled, and the connection stays."""
    async with served() as peers:
        peers.client.acknowledges = False
        message = service_pb2.ModelInferRequest(model_name="many", id="a")
        message.inputs.add(name="x", datatype="UINT8", shape=[10_000])
        message.raw_input_contents.append(bytes(10_000))
        message.parameters["responses"].int64_param = 10_000
        stream = await peers.client.open(PATH)
        await peers.client.send(stream, framed(message.SerializeToString()) + request("b", "forever"))
        response = await peers.client.finish(stream)
        assert response.reset is not None
        await trio.testing.wait_all_tasks_blocked()
        assert peers.core.in_flight == 0
        assert "b" in peers.core.cancelled
        peers.client.h2.increment_flow_control_window(10_000_000)
        await peers.ask("ServerLive")


async def test_the_real_status_of_a_decoupled_model(autojump_clock: trio.testing.MockClock) -> None:
    """After responses every error is the model's, of whatever kind."""
    async with served() as peers:
        requests = many("a", "many_forever", responses=2) + many("b", responses=1, failure="it broke")
        response = await stream_of(peers, requests, headers={"triton_grpc_error": "true"})
        assert told(response) == [("a", 0, False), ("b", 0, False)]
        assert (response.status, response.message) == (INVALID_ARGUMENT, "it broke")
        assert peers.core.cancelled == ["a"]


async def test_responses_after_the_client_has_ended_its_side(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as peers:
        stream = await peers.client.open(PATH)
        await peers.client.send(stream, many("a", "many_wait", responses=3), end=True)
        await trio.testing.wait_all_tasks_blocked()
        peers.core.gate.set()
        assert [number for _, number, _ in told(await peers.client.finish(stream))] == [0, 1, 2]


def endings(peers: Caller) -> list[str]:
    return [each.ending for each in peers.core.submitted]


async def test_plain_requests_take_no_task_and_keep_the_order_among_those_that_do(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A defect takes one in the fake core, as what is wrong does."""
    async with served() as peers:
        stream = await peers.client.open(PATH)
        asked = [("a", "wait"), ("b", "defect"), ("c", "echo"), ("d", "unknown"), ("e", "unavailable"), ("f", "echo")]
        await peers.client.send(stream, b"".join(request(name, model) for name, model in asked))
        await trio.testing.wait_all_tasks_blocked()
        peers.core.gate.set()
        await peers.client.send(stream, request("g"), end=True)
        response = await peers.client.finish(stream)
        assert [name for name, _ in briefly(response)] == [*"abcdefg"]
        assert [name for name, error in briefly(response) if error] == ["b", "d", "e"]
        assert set(endings(peers)) == {"answered"}
        assert len(peers.core.submitted) >= 2


async def test_a_stream_that_is_reset_gives_up_what_was_submitted(autojump_clock: trio.testing.MockClock) -> None:
    """Also what is ready and not its turn."""
    async with served() as peers:
        stream = await peers.client.open(PATH)
        await peers.client.send(stream, request("a", "forever") + request("b") + request("c", "forever"))
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(endings(peers)) == ["", "", "answered"]
        peers.client.h2.reset_stream(stream)
        await peers.client.flush()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(endings(peers)) == ["answered", "given up", "given up"]
        assert peers.connection._calls.memory.left == GrpcSettings().limits.max_receive_memory


async def test_small_requests_count_for_what_they_take(autojump_clock: trio.testing.MockClock) -> None:
    """In a stream whose model answers none of them: they come by themselves, and many at once."""
    limits = ConnectionLimits(max_receive_memory=CALL_MEMORY + 20 * (MESSAGE_MEMORY + 100))
    async with serving(settings=GrpcSettings(limits=limits)) as peers:
        stream = await peers.client.open(PATH)
        for number in range(10):
            await peers.client.send(stream, request(str(number), "forever"))
            await trio.testing.wait_all_tasks_blocked()
        await peers.client.send(stream, b"".join(request(str(number), "forever") for number in range(20)))
        await trio.testing.wait_all_tasks_blocked()
        assert peers.core.most_in_flight == 20
        assert peers.connection._calls.memory.left < MESSAGE_MEMORY
        peers.client.h2.reset_stream(stream)
        await peers.client.flush()
        await trio.testing.wait_all_tasks_blocked()
        assert peers.connection._calls.memory.left == limits.max_receive_memory


async def test_answers_of_many_streams_leave_in_one_write(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as peers:
        streams = [await peers.client.open(PATH) for _ in range(4)]
        for stream in streams:
            await peers.client.send(stream, request("a", "wait"))
        await trio.testing.wait_all_tasks_blocked()
        reads = peers.client.reads
        peers.core.gate.set()
        while not all(peers.client.responses[stream].data for stream in streams):
            await peers.client.read()
        assert peers.client.reads <= reads + 2  # the first is what the server said first of all


async def test_a_request_that_ends_the_stream_gives_up_the_others(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as peers:
        stream = await peers.client.open(PATH, {"triton_grpc_error": "true"})
        await peers.client.send(stream, request("a", "forever") + request("b", "unavailable"))
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(endings(peers)) == ["", "answered"]
        await peers.client.send(stream, request("c", "unavailable"))
        peers.client.h2.reset_stream(stream)
        await peers.client.flush()
        await trio.testing.wait_all_tasks_blocked()
        again = await peers.client.open(PATH, {"triton_grpc_error": "true"})
        await peers.client.send(again, request("b", "unavailable") + request("c", "forever"))
        response = await peers.client.finish(again)
        assert (response.status, response.messages) == (UNAVAILABLE, [])
        await trio.testing.wait_all_tasks_blocked()
        assert "" not in endings(peers)


async def test_requests_that_come_by_themselves_do_not_wake_the_reader(autojump_clock: trio.testing.MockClock) -> None:
    """One by one, in two pieces, with the end, and two in one piece: all are answered in their order."""
    async with served() as peers:
        stream = await peers.client.open(PATH)
        await trio.testing.wait_all_tasks_blocked()
        pieces = [
            request("a"),
            request("b")[:9],
            request("b")[9:],
            request("c") + request("d"),
            request("e", "unknown"),
        ]
        for piece in pieces:
            await peers.client.send(stream, piece)
            await trio.testing.wait_all_tasks_blocked()
        await peers.client.send(stream, request("f"), end=True)
        response = await peers.client.finish(stream)
        assert [name for name, _ in briefly(response)] == [*"abcdef"]
        assert [name for name, error in briefly(response) if error] == ["e"]
        assert response.status == 0
        assert endings(peers) == ["answered"] * (6 if driver.has_fast_path else 5)  # a task knows that "e" is refused
        assert peers.connection._calls.memory.left == GrpcSettings().limits.max_receive_memory


async def test_the_limit_holds_for_requests_that_come_by_themselves(autojump_clock: trio.testing.MockClock) -> None:
    async with served(max_in_flight=3) as peers:
        stream = await peers.client.open(PATH)
        for number in range(8):
            await peers.client.send(stream, request(str(number), "wait"))
            await trio.testing.wait_all_tasks_blocked()
        assert peers.core.in_flight == 3
        peers.core.gate.set()
        await peers.client.send(stream, b"", end=True)
        response = await peers.client.finish(stream)
        assert [name for name, _ in briefly(response)] == [*"01234567"]
        assert peers.core.most_in_flight == 3
