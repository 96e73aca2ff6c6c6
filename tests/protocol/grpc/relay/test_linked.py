"""Calls to an edge that has a link: what it runs itself, and what it has the core's edge answer."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import grpc  # type: ignore[import-untyped]  # ships no types
import numpy as np
import pytest
import trio
from tritonclient.grpc import service_pb2

from protocol.access.control import AccessControl
from protocol.access.key_table import key_table
from protocol.access.keys import KeyRing
from protocol.access.told_keys import ToldKeys
from protocol.core import InferenceCore
from protocol.edge_link.edge_traces import EdgeTrace
from protocol.edge_link.texts import StampsText, TraceText
from protocol.failures import CallbackFailures
from protocol.grpc.relay.server import serve_relayed
from protocol.limits.counter import LimitCounter
from protocol.open_connections import OpenConnections
from protocol.reactor.arrivals import Listening
from protocol.services import EdgeServices, Linked
from protocol.shared_memory.placement import PlacedRequest
from protocol.shared_memory.table import SharedMemoryTable
from tests.protocol.edge_link.links import Link
from tests.protocol.edge_link.links import linked as link_to
from tests.protocol.grpc.drivers import driver
from tests.protocol.grpc.edge_services import edge_services
from tests.protocol.grpc.fakes import FakeCore
from tests.protocol.grpc.served import LOCAL, SMALL, Served, serving, wire_request

RING = KeyRing.parse(
    """
    keys.alice = { key = "alice-0123456789abcdef", allow = ["inference"] }
    keys.bob = { key = "bob-0123456789abcdef", allow = ["inference"], quota = "many" }
    quotas.many.requests = { limit = 100, seconds = 60 }
    """,
    source="keys.toml",
)


@dataclass
class Relayed(Served):
    """`behind` is the core's edge, `clients` those in whose name connections to it were opened."""

    behind: Served
    clients: list[str] = field(default_factory=list)


@asynccontextmanager
async def relaying(keys: ToldKeys | None = None, **parts: Any) -> AsyncIterator[Relayed]:
    """An edge with a link, whose services `edge_services` makes of `parts`, in front of another one."""
    linked = FakeCore()
    async with (
        serving() as behind,
        trio.open_nursery() as nursery,
        link_to(cast(InferenceCore, linked), keys=keys) as link,
    ):
        linked.tasks = nursery
        services = edge_services(linked, shared_memory=SharedMemoryTable(allow_registration=False), **parts)
        services = replace(services, core=cast(InferenceCore, link.core))
        if keys is not None:
            services = replace(services, access=AccessControl(keys=keys))
        host, _, port = behind.address.rpartition(":")

        async def open_one(client: str) -> trio.SocketStream:
            edge.clients.append(client)
            return await trio.open_tcp_stream(host, int(port))

        arrivals = await Listening.open("127.0.0.1", 0)
        address = "{}:{}".format(*arrivals.address)
        edge = Relayed(address, linked, services, behind.stop, behind.has_ended, behind)
        nursery.start_soon(serve, services, arrivals, open_one, link, keys)
        yield edge
        nursery.cancel_scope.cancel()


async def serve(services: EdgeServices, arrivals: Listening, open_one: Any, link: Link, keys: ToldKeys | None) -> None:
    await serve_relayed(
        open_one,
        replace(LOCAL, has_fast_path=driver.has_fast_path),
        arrivals,
        trio.Event(),
        limits=LimitCounter(),
        memory=services.memory,
        failures=CallbackFailures(),
        connections=OpenConnections(),
        linked=Linked(services, keys, link.core.facts.know),
    )


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_inference_is_run_here(compression: Any) -> None:
    values = np.ones((1, 100_000), np.float32)
    async with relaying() as edge:
        answer = await edge.run_stub(lambda stub: stub.ModelInfer(wire_request(values=values), compression=compression))
        assert answer.raw_output_contents[0] == values.tobytes()
        assert (len(edge.core.requests), edge.behind.core.requests, edge.clients) == (1, [], [])


@pytest.mark.parametrize(
    ("model", "code", "text"),
    [("unknown", grpc.StatusCode.NOT_FOUND, "unknown"), ("many", grpc.StatusCode.UNIMPLEMENTED, "decoupled")],
)
async def test_errors_of_compressed_calls(model: str, code: grpc.StatusCode, text: str) -> None:
    async with relaying() as edge:
        request = wire_request(model)
        with pytest.raises(grpc.RpcError, match=text) as failed:
            await edge.run_stub(lambda stub: stub.ModelInfer(request, compression=grpc.Compression.Gzip))
        assert failed.value.code() is code
        assert edge.clients == []


def into_region(model: str = "echo", request_id: str = "") -> Any:
    """A request whose output goes to a region that is not registered."""
    request = wire_request(model, request_id)
    output = service_pb2.ModelInferRequest.InferRequestedOutputTensor(name="x")
    output.parameters["shared_memory_region"].string_param = "there"
    output.parameters["shared_memory_byte_size"].int64_param = SMALL.nbytes
    request.outputs.append(output)
    return request


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip])
async def test_regions_of_shared_memory_are_the_cores(compression: Any) -> None:
    request = into_region()
    async with relaying() as edge:
        with pytest.raises(grpc.RpcError, match="Unable to find shared memory region: 'there'") as failed:
            await edge.run_stub(
                lambda stub: stub.ModelInfer(request, compression=compression, metadata=(("x-request-id", "mine"),))
            )
        assert failed.value.code() is grpc.StatusCode.NOT_FOUND
        assert ("x-request-id", "mine") in [(each.key, each.value) for each in failed.value.trailing_metadata()]
        assert (len(edge.clients), edge.core.requests) == (1, [])


async def test_load_reports_are_the_cores() -> None:
    async with relaying() as edge:
        metadata = (("endpoint-load-metrics-format", "text"),)
        answer = await edge.run_stub(lambda stub: stub.ModelInfer(wire_request(), metadata=metadata))
        assert answer.raw_output_contents[0] == SMALL.tobytes()
        assert (len(edge.behind.core.requests), edge.core.requests) == (1, [])


async def test_what_may_be_traced_is_the_cores_to_decide() -> None:
    """Here it has a trace in any case, but for what goes to the core's edge."""
    control = Candidates()
    async with relaying(trace=control) as edge:
        await edge.run_stub(lambda stub: stub.ModelInfer(wire_request()))
        with pytest.raises(grpc.RpcError):
            await edge.run_stub(lambda stub: stub.ModelInfer(into_region()))
        with pytest.raises(grpc.RpcError):
            await edge.run_stub(lambda stub: stub.ModelInfer(wire_request("unknown")))
        await streamed(edge, wire_request(request_id="1"), into_region(request_id="2"))
        assert (len(edge.core.requests), len(edge.clients)) == (2, 2)
        assert control.told == []


async def test_all_else_is_relayed() -> None:
    async with relaying() as edge:
        index = await edge.run_stub(lambda stub: stub.RepositoryIndex(service_pb2.RepositoryIndexRequest()))
        assert [each.name for each in index.models] == ["echo", "broken", "never loaded"]
        assert len(edge.clients) == 1


def responding(times: int, model: str = "many", request_id: str = "", **parameters: str) -> Any:
    request = wire_request(model, request_id)
    request.parameters["responses"].int64_param = times
    for name, value in parameters.items():
        request.parameters[name].string_param = value
    return request


async def streamed(edge: Relayed, *requests: Any, metadata: tuple[tuple[str, str], ...] = ()) -> list[tuple[str, str]]:
    """The ids and errors of the answers to a stream of requests."""
    answers = await edge.run_stub(lambda stub: [*stub.ModelStreamInfer(iter(requests), metadata=metadata)])
    return [(each.infer_response.id, each.error_message) for each in answers]


async def test_a_stream_is_run_here() -> None:
    async with relaying() as edge:
        asked = [wire_request(request_id=str(number)) for number in range(20)]
        assert await streamed(edge, *asked) == [(str(number), "") for number in range(20)]
        (unknown,) = await streamed(edge, wire_request("unknown", "7"))
        assert "unknown" in unknown[1]
        assert (len(edge.behind.core.requests), edge.clients) == (0, [])


async def test_models_that_answer_often_are_run_here() -> None:
    async with relaying() as edge:
        asked = responding(100, request_id="many"), responding(2, request_id="two", failure="no more")
        answers = await streamed(edge, *asked)
        assert answers.count(("many", "")) == 100
        assert [each for each in answers if each[0] != "many"] == [("two", ""), ("two", ""), ("two", "no more")]
        assert edge.clients == []


async def test_a_client_that_leaves_its_stream_is_given_up() -> None:
    def leave(stub: Any) -> None:
        call = stub.ModelStreamInfer(iter((wire_request("forever", "a"), responding(2, "many_forever", "b"))))
        assert next(call).infer_response.id == "b"
        call.cancel()

    async with relaying() as edge:
        await edge.run_stub(leave)
        while len(edge.core.cancelled) < 2:
            await edge.core.cancellation.wait()
            edge.core.cancellation = trio.Event()
        assert sorted(edge.core.cancelled) == ["a", "b"]


async def test_single_requests_of_a_stream_are_the_cores() -> None:
    """Those with regions of shared memory; the order of answers stays."""
    async with relaying() as edge:
        asked = wire_request(request_id="1"), into_region(request_id="2"), wire_request(request_id="3")
        answers = await streamed(edge, *asked)
        assert [each[0] for each in answers] == ["1", "2", "3"]
        assert [bool(each[1]) for each in answers] == [False, True, False]
        assert "Unable to find shared memory region: 'there'" in answers[1][1]
        assert len(edge.clients) == 1
        (answer,) = await streamed(edge, into_region("many"))
        assert "Unable to find shared memory region: 'there'" in answer[1]


async def test_a_stream_that_is_traced_while_it_goes_on() -> None:
    control = Candidates(is_on=False)
    async with relaying(trace=control) as edge:

        def ask(stub: Any) -> list[str]:
            def requests() -> Iterator[Any]:
                yield wire_request(request_id="1")
                first.wait(60)
                control.is_on = True
                yield wire_request(request_id="2")
                yield responding(2, request_id="3")

            found = []
            for answer in stub.ModelStreamInfer(requests()):
                found.append(answer.infer_response.id)
                first.set()
            return found

        first = threading.Event()
        assert sorted(await edge.run_stub(ask)) == ["1", "2", "3", "3"]
        assert (len(edge.core.requests), edge.behind.core.requests, control.told) == (3, [], [])


ENDS = (("triton_grpc_error", "true"),)


async def test_a_stream_that_ends_by_an_error() -> None:
    async with relaying() as edge:
        with pytest.raises(grpc.RpcError) as failed:
            await streamed(edge, wire_request("unavailable"), metadata=ENDS)
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        assert edge.clients == []


async def test_a_stream_that_ends_by_an_error_of_what_goes_to_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the status that it has there; what is wrong with a request does not end it."""
    async with relaying() as edge:
        answers = await streamed(edge, into_region(request_id="1"), wire_request(request_id="2"), metadata=ENDS)
        assert [bool(text) for _, text in answers] == [True, False]
        monkeypatch.setattr(PlacedRequest, "fetch", fetched)
        with pytest.raises(grpc.RpcError) as failed:
            await streamed(edge, into_region("unavailable"), wire_request(request_id="2"), metadata=ENDS)
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        ((_, text),) = await streamed(edge, into_region("unavailable"))
        assert text.endswith(failed.value.details())


class Fetched:
    """In place of a request whose regions are there."""


async def fetched(*_: object) -> Fetched:
    return Fetched()


class Candidates:
    """The part of `TraceControl` that an edge process has; `told` are ends of what has not come to the core."""

    follows_context = False

    def __init__(self, *, is_on: bool = True) -> None:
        self.is_on = is_on
        self.told: list[tuple[str, TraceText]] = []

    @property
    def is_sampling(self) -> bool:
        return self.is_on

    def sample(self, model: str, **_: str) -> EdgeTrace:
        return EdgeTrace(self, model)

    def tell_stamps(self, text: StampsText) -> None:
        raise AssertionError

    def tell_trace(self, model: str, text: TraceText) -> None:
        self.told.append((model, text))


async def test_a_model_that_has_become_decoupled_is_answered_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core refuses what the edge took for a plain request, when it is on its way already."""
    async with relaying() as edge:
        assert await streamed(edge, wire_request(request_id="1")) == [("1", "")]
        monkeypatch.setattr(FakeCore, "is_decoupled", lambda core, name, version=-1: True)
        assert len(await streamed(edge, wire_request(request_id="2"))) == 1


def told(*, is_current: bool = True) -> ToldKeys:
    keys = ToldKeys(lambda: 0 if is_current else 1)
    keys.take(key_table(RING, 0))
    return keys


def bearer(name: str) -> Any:
    return (("authorization", f"Bearer {name}-0123456789abcdef"),)


async def test_callers_are_checked_and_charged_here() -> None:
    keys = told()
    async with relaying(keys) as edge:
        with pytest.raises(grpc.RpcError) as failed:
            await edge.run_stub(lambda stub: stub.ModelInfer(wire_request()))
        assert failed.value.code() is grpc.StatusCode.UNAUTHENTICATED
        await edge.run_stub(lambda stub: stub.ModelInfer(wire_request(), metadata=bearer("alice")))
        requests = [wire_request(request_id=name) for name in "abc"]
        await edge.run_stub(lambda stub: list(stub.ModelStreamInfer(iter(requests), metadata=bearer("alice"))))
        assert (len(edge.core.requests), edge.clients) == (4, [])
        usage = keys.ledger.account("alice").usage
        assert (usage.requests, usage.running) == (4, 0)
        sent = sum(request.ByteSize() for request in (wire_request(), *requests))
        assert usage.bytes > sent


async def test_keys_that_come_in_are_the_cores() -> None:
    name = "alice"
    async with relaying(told(is_current=False)) as edge:
        await edge.run_stub(lambda stub: stub.ModelInfer(wire_request(), metadata=bearer(name)))
        requests = [wire_request(request_id=name) for name in "abc"]
        await edge.run_stub(lambda stub: list(stub.ModelStreamInfer(iter(requests), metadata=bearer(name))))
        assert (edge.core.requests, len(edge.behind.core.requests)) == ([], 4)


async def test_what_the_core_answers_is_not_charged_here() -> None:
    keys = told()
    async with relaying(keys) as edge:
        with pytest.raises(grpc.RpcError):
            await edge.run_stub(lambda stub: stub.ModelInfer(into_region(), metadata=bearer("alice")))
        messages = await edge.run_stub(
            lambda stub: list(stub.ModelStreamInfer(iter([into_region()]), metadata=bearer("alice")))
        )
        assert "shared memory" in messages[0].error_message
        usage = keys.ledger.account("alice").usage
        assert (usage.requests, usage.running, usage.bytes) == (0, 0, 0)
