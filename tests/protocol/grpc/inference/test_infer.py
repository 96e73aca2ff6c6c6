"""ModelInfer on its way: forwarded headers, traces, and models that it cannot serve."""

from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from protocol.access.forwarding import HeaderForwarding
from protocol.grpc.call.compression import decompress
from protocol.grpc.settings import GrpcSettings
from tests.protocol.grpc.caller import SERVICE, Caller, serving
from tests.protocol.grpc.client import framed
from tests.protocol.grpc.edge_services import FakeTraceControl, edge_services
from tests.protocol.grpc.harness import INVALID_ARGUMENT, UNIMPLEMENTED


def request_of(model: str = "echo", request_id: str = "7", **parameters: str) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id, raw_input_contents=[b"\1\2\3\4"])
    request.inputs.add(name="x", datatype="INT32", shape=[1])
    for key, value in parameters.items():
        request.parameters[key].string_param = value
    return request


async def stream_answers(peers: Caller, *requests: Any, status: int = 0) -> list[Any]:
    stream = await peers.client.open(f"{SERVICE}/ModelStreamInfer", peers.headers)
    data = b"".join(framed(request.SerializeToString()) for request in requests)
    await peers.client.send(stream, data, end=True)
    response = await peers.client.finish(stream)
    assert response.status == status
    return [service_pb2.ModelStreamInferResponse.FromString(message) for message in response.messages]


async def test_decoupled_models_need_the_stream() -> None:
    async with serving() as peers:
        expected = "ModelInfer RPC doesn't support models with decoupled transaction policy"
        assert await peers.refusal("ModelInfer", request_of("many")) == (UNIMPLEMENTED, expected)
        assert peers.core.requests == []


async def test_headers_become_parameters() -> None:
    """Of the pattern's choice only; they go over the request's own."""
    services = edge_services(forwarding=HeaderForwarding("^x-|^agent|user-agent"))
    async with serving(services) as peers:
        peers.headers = {"x-user": "ann", "agent-bin": "AAE", "other": "1", "user-agent": "me"}
        await peers.ask("ModelInfer", request_of(**{"x-user": "forged", "mine": "kept"}))
        await stream_answers(peers, request_of("echo", "8"), request_of("echo", "9"))
        expected = {"x-user": "ann", "agent-bin": "AAE", "user-agent": "me"}
        parameters = [one.parameters for one in peers.core.requests]
        assert parameters == [{"mine": "kept", **expected}, expected, expected]


async def test_a_header_that_comes_several_times_is_one_parameter() -> None:
    services = edge_services(forwarding=HeaderForwarding("x-"))
    async with serving(services) as peers:
        stream_id = peers.client.h2.get_next_available_stream_id()
        headers = [
            *((":method", "POST"), (":scheme", "http"), (":path", f"{SERVICE}/ModelInfer"), (":authority", "x")),
            *(("content-type", "application/grpc"), ("te", "trailers"), ("x-a", "1"), ("x-b", "2"), ("x-a", "3")),
        ]
        peers.client.h2.send_headers(stream_id, headers)
        peers.client.responses[stream_id] = type(await peers.client.call("/none", b""))()
        await peers.client.send(stream_id, framed(request_of().SerializeToString()), end=True)
        await peers.client.finish(stream_id)
        assert peers.core.requests[0].parameters == {"x-a": "1, 3", "x-b": "2"}


@pytest.mark.parametrize("name", ["priority", "timeout", "sequence_id", "triton_x"])
async def test_reserved_headers_are_not_forwarded(name: str) -> None:
    """In a stream each request is answered, and the stream goes on."""
    services = edge_services(forwarding=HeaderForwarding(".*"))
    async with serving(services) as peers:
        peers.headers = {name: "1"}
        expected = f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
        assert await peers.refusal("ModelInfer", request_of()) == (INVALID_ARGUMENT, expected)
        answers = await stream_answers(peers, request_of("echo", "a"), request_of("echo", "b"))
        assert [one.error_message for one in answers] == [expected, expected]
        assert peers.core.requests == []


async def test_nothing_is_forwarded_without_a_pattern() -> None:
    async with serving() as peers:
        peers.headers = {"priority": "1", "x-user": "ann"}
        await peers.ask("ModelInfer", request_of())
        assert peers.core.requests[0].parameters == {}


ACTIVITIES = [
    "GRPC_WAITREAD_START",
    "GRPC_WAITREAD_END",
    "INFER_RESPONSE_COMPLETE",
    "GRPC_SEND_START",
    "GRPC_SEND_END",
]


async def test_a_traced_call() -> None:
    """The core gets the trace with the request; the edge ends it."""
    control = FakeTraceControl(is_on=True)
    async with serving(edge_services(trace=control)) as peers:
        await peers.ask("ModelInfer", request_of())
        (trace,) = control.traces
        assert (trace.model, trace.activities, trace.has_ended) == ("echo", ACTIVITIES, True)
        assert peers.core.requests[0].trace is trace
        started, read = trace.times["GRPC_WAITREAD_START"], trace.times["GRPC_WAITREAD_END"]
        assert started is not None
        assert read is not None
        assert started <= read
        assert trace.headers == {"traceparent": "", "tracestate": ""}


@pytest.mark.parametrize("follows", [True, False])
async def test_trace_contexts_are_passed_on_where_they_are_wanted(follows: bool) -> None:
    control = FakeTraceControl(is_on=True, follows_context=follows)
    async with serving(edge_services(trace=control)) as peers:
        peers.headers = {"traceparent": "00-1-2-01", "tracestate": "a=b"}
        await peers.ask("ModelInfer", request_of())
        await stream_answers(peers, request_of())
        expected = peers.headers if follows else {"traceparent": "", "tracestate": ""}
        assert [trace.headers for trace in control.traces] == [expected, expected]


@pytest.mark.parametrize("model", ["unavailable", "unknown", "defect", "many"])
async def test_traces_of_failed_calls_end_too(model: str) -> None:
    control = FakeTraceControl(is_on=True)
    async with serving(edge_services(trace=control)) as peers:
        await peers.refusal("ModelInfer", request_of(model))
        assert [trace.has_ended for trace in control.traces] == [True]


async def test_traces_of_cancelled_calls_end_too() -> None:
    control = FakeTraceControl(is_on=True)
    async with serving(edge_services(trace=control)) as peers:
        peers.headers = {"grpc-timeout": "100m"}
        await peers.refusal("ModelInfer", request_of("forever"))
        assert [trace.has_ended for trace in control.traces] == [True]


async def test_each_request_of_a_stream_has_its_own_trace() -> None:
    """A decoupled model sends several times within one."""
    control = FakeTraceControl(is_on=True)
    many = request_of("many")
    many.parameters["responses"].int64_param = 2
    async with serving(edge_services(trace=control)) as peers:
        await stream_answers(peers, request_of(), many, request_of("unavailable"), request_of("unknown"))
        assert [trace.has_ended for trace in control.traces] == [True] * 4
        assert control.traces[0].activities == ACTIVITIES
        assert control.traces[1].activities == ACTIVITIES + ACTIVITIES[2:]
        assert [one.trace for one in peers.core.requests] == control.traces[:3]


# Compressed responses.


COMPRESSED = GrpcSettings(compression_level=6)


def large_request() -> Any:
    request = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(200_000)])
    request.inputs.add(name="x", datatype="UINT8", shape=[200_000])
    return request


async def frames_of(peers: Caller, call: str, *requests: Any) -> tuple[str | None, list[tuple[int, bytes]]]:
    """The response's encoding, and flag and payload of each of its messages."""
    stream = await peers.client.open(f"{SERVICE}/{call}", peers.headers)
    data = b"".join(framed(request.SerializeToString()) for request in requests)
    await peers.client.send(stream, data, end=True)
    response = await peers.client.finish(stream)
    assert response.status == 0
    flags, position = [], 0
    for message in response.messages:
        flags.append(response.data[position])
        position += 5 + len(message)
    return response.headers.get("grpc-encoding"), list(zip(flags, response.messages, strict=True))


@pytest.mark.parametrize(("accepted", "encoding"), [("identity, deflate, gzip", "gzip"), ("deflate", "deflate")])
async def test_responses_are_compressed_for_who_reads_it(accepted: str, encoding: str) -> None:
    """Each message for itself: a small one stays as it is."""
    async with serving(settings=COMPRESSED) as peers:
        peers.headers = {"grpc-accept-encoding": accepted}
        found, [(flag, payload)] = await frames_of(peers, "ModelInfer", large_request())
        assert (found, flag) == (encoding, 1)
        assert len(payload) < 2000
        inflated = decompress(memoryview(payload), encoding, 1_000_000)
        assert service_pb2.ModelInferResponse.FromString(inflated).raw_output_contents[0] == bytes(200_000)
        found, frames = await frames_of(peers, "ModelStreamInfer", large_request(), request_of(), large_request())
        assert (found, [flag for flag, _ in frames]) == (encoding, [1, 0, 1])


@pytest.mark.parametrize(
    ("settings", "headers"),
    [
        (GrpcSettings(), {"grpc-accept-encoding": "gzip"}),
        (COMPRESSED, {}),
        (COMPRESSED, {"grpc-accept-encoding": "identity, snappy"}),
    ],
)
async def test_responses_are_compressed_for_nobody_else(settings: GrpcSettings, headers: dict[str, str]) -> None:
    async with serving(settings=settings) as peers:
        peers.headers = headers
        found, [(flag, _)] = await frames_of(peers, "ModelInfer", large_request())
        assert (found, flag) == (None, 0)


async def test_other_calls_are_not_compressed() -> None:
    async with serving(settings=COMPRESSED) as peers:
        peers.headers = {"grpc-accept-encoding": "gzip"}
        found, [(flag, _)] = await frames_of(peers, "RepositoryIndex", service_pb2.RepositoryIndexRequest())
        assert (found, flag) == (None, 0)
