"""The whole edge behind one connection in memory, called with messages of Triton's own classes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import trio
import trio.testing
from tritonclient.grpc import service_pb2

from protocol.grpc.codec.request_templates import RequestTemplates
from protocol.grpc.connection.calls import Shared
from protocol.grpc.connection.connection import Connection
from protocol.grpc.inference.direct_infer import DirectInfer
from protocol.grpc.services.handlers import grpc_handlers
from protocol.grpc.settings import GrpcSettings
from protocol.reactor.replies import Replies
from protocol.services import EdgeServices
from tests.protocol.grpc.client import Client, Response
from tests.protocol.grpc.drivers import driver
from tests.protocol.grpc.edge_services import edge_services
from tests.protocol.grpc.fakes import FakeCore

SERVICE = "/inference.GRPCInferenceService"


class Caller:
    """`headers` go with every call; `scope` is what the connection runs in."""

    def __init__(self, client: Client, core: FakeCore, connection: Connection) -> None:
        self.client = client
        self.core = core
        self.connection = connection
        self.scope = trio.CancelScope()
        self.headers: dict[str, str] = {}

    async def run(self) -> None:
        with self.scope:
            await self.connection.run()

    async def call(self, name: str, request: Any = None) -> Response:
        """Call with a message of Triton's own class, empty if none is given."""
        message = getattr(service_pb2, f"{name}Request")() if request is None else request
        return await self.client.call(f"{SERVICE}/{name}", message.SerializeToString(), headers=self.headers)

    async def ask(self, name: str, request: Any = None) -> Any:
        """The good response of a call, as Triton's own class."""
        response = await self.call(name, request)
        assert response.status == 0, response.message
        (message,) = response.messages
        return getattr(service_pb2, f"{name}Response").FromString(message)

    async def refusal(self, name: str, request: Any = None) -> tuple[int, str]:
        """Status and message of a call that fails."""
        response = await self.call(name, request)
        assert response.status != 0
        assert response.messages == []
        return response.status, response.message


@asynccontextmanager
async def serving(
    services: EdgeServices | None = None, settings: GrpcSettings | None = None, *, has_fast_path: bool | None = None
) -> AsyncIterator[Caller]:
    """`services` must be around a FakeCore."""
    client_end, server_end = trio.testing.memory_stream_pair()
    services = services or edge_services()
    has_fast_path = driver.has_fast_path if has_fast_path is None else has_fast_path
    settings = replace(settings or GrpcSettings(), has_fast_path=has_fast_path)
    templates = RequestTemplates()
    replies = Replies()
    direct = DirectInfer.of(services, settings, templates, replies)
    handlers = grpc_handlers(services, settings, templates, replies)
    shared = Shared(
        handlers, settings.limits, services.limits, services.memory, direct=direct, flush=services.core.flush
    )
    connection = Connection(server_end, shared)
    client = Client(client_end)
    assert isinstance(services.core, FakeCore)
    peers = Caller(client, services.core, connection)
    around = services.core.tasks  # of another connection to the same core
    async with trio.open_nursery() as answering:
        services.core.tasks = answering
        answering.start_soon(replies.run)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peers.run)
            await client.start()
            yield peers
            await client_end.aclose()
        answering.cancel_scope.cancel()
        services.core.tasks = around
