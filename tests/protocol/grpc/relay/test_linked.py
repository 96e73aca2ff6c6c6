"""Calls to an edge that has a link: what it runs itself, and what it has the core's edge answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc  # type: ignore[import-untyped]  # ships no types
import numpy as np
import pytest
import trio
from tritonclient.grpc import service_pb2

from protocol.failures import CallbackFailures
from protocol.grpc.relay.server import serve_relayed
from protocol.limits.counter import LimitCounter
from protocol.open_connections import OpenConnections
from protocol.reactor.arrivals import Listening
from protocol.services import EdgeServices
from protocol.shared_memory.table import SharedMemoryTable
from tests.protocol.grpc.edge_services import FakeTraceControl, edge_services
from tests.protocol.grpc.fakes import FakeCore
from tests.protocol.grpc.served import LOCAL, SMALL, Served, serving, wire_request


@dataclass
class Relayed(Served):
    """`behind` is the core's edge, `clients` those in whose name connections to it were opened."""

    behind: Served
    clients: list[str] = field(default_factory=list)


@asynccontextmanager
async def relaying(**parts: Any) -> AsyncIterator[Relayed]:
    """An edge with a link, whose services `edge_services` makes of `parts`, in front of another one."""
    linked = FakeCore()
    services = edge_services(linked, shared_memory=SharedMemoryTable(allow_registration=False), **parts)
    async with serving() as behind, trio.open_nursery() as nursery:
        linked.tasks = nursery
        host, _, port = behind.address.rpartition(":")

        async def open_one(client: str) -> trio.SocketStream:
            edge.clients.append(client)
            return await trio.open_tcp_stream(host, int(port))

        arrivals = await Listening.open("127.0.0.1", 0)
        address = "{}:{}".format(*arrivals.address)
        edge = Relayed(address, linked, services, behind.stop, behind.has_ended, behind)
        nursery.start_soon(lambda: serve(services, arrivals, open_one))
        yield edge
        nursery.cancel_scope.cancel()


async def serve(services: EdgeServices, arrivals: Listening, open_one: Any) -> None:
    await serve_relayed(
        open_one,
        replace(LOCAL),
        arrivals,
        trio.Event(),
        limits=LimitCounter(),
        memory=services.memory,
        failures=CallbackFailures(),
        connections=OpenConnections(),
        linked=services,
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


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip])
async def test_regions_of_shared_memory_are_the_cores(compression: Any) -> None:
    request = wire_request()
    output = service_pb2.ModelInferRequest.InferRequestedOutputTensor(name="x")
    output.parameters["shared_memory_region"].string_param = "there"
    output.parameters["shared_memory_byte_size"].int64_param = SMALL.nbytes
    request.outputs.append(output)
    async with relaying() as edge:
        with pytest.raises(grpc.RpcError, match="Unable to find shared memory region: 'there'") as failed:
            await edge.run_stub(
                lambda stub: stub.ModelInfer(request, compression=compression, metadata=(("x-request-id", "mine"),))
            )
        assert failed.value.code() is grpc.StatusCode.NOT_FOUND
        assert ("x-request-id", "mine") in [(each.key, each.value) for each in failed.value.trailing_metadata()]
        assert (len(edge.clients), edge.core.requests) == (1, [])


async def test_load_reports_and_traces_are_the_cores() -> None:
    for metadata, is_traced in (("endpoint-load-metrics-format", "text"), False), (("a", "b"), True):
        async with relaying(trace=FakeTraceControl(is_on=is_traced)) as edge:
            answer = await edge.run_stub(
                lambda stub, more=metadata: stub.ModelInfer(wire_request(), metadata=(more,))  # type: ignore[misc]
            )
            assert answer.raw_output_contents[0] == SMALL.tobytes()
            assert (len(edge.behind.core.requests), edge.core.requests) == (1, [])


async def test_all_else_is_relayed() -> None:
    async with relaying() as edge:
        index = await edge.run_stub(lambda stub: stub.RepositoryIndex(service_pb2.RepositoryIndexRequest()))
        assert [each.name for each in index.models] == ["echo", "broken", "never loaded"]
        assert len(edge.clients) == 1
