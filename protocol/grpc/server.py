"""The gRPC server: accept loop, TLS handshake, and a connection task for each client.

Flow: [server] -> connection -> stream -> service -> core. Owned by whoever starts it, with what it is to serve.
"""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Sequence

import trio

from protocol.grpc.access import UNLOGGED
from protocol.grpc.codec.request_templates import RequestTemplates
from protocol.grpc.connection.calls import Shared
from protocol.grpc.connection.connection import Connection
from protocol.grpc.inference.direct_infer import DirectInfer
from protocol.grpc.services.handlers import grpc_handlers
from protocol.grpc.settings import ALPN_PROTOCOL, ConnectionLimits, GrpcSettings, Keepalive
from protocol.open_connections import Open
from protocol.reactor.drivers import the_poller
from protocol.reactor.last_connections import refuse_more
from protocol.reactor.listening import open_listeners
from protocol.reactor.replies import Replies
from protocol.reactor.tls import agreed_protocol, server_stream
from protocol.services import EdgeServices

__all__ = ["ConnectionLimits", "GrpcSettings", "Keepalive", "serve_grpc"]


async def serve_grpc(
    services: EdgeServices,
    settings: GrpcSettings,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` is set, then take no more and return when every call in progress has ended.

    Started with the address that it listens on. Cancelling means: stop now, with all calls cancelled.

    Raises:
        OSError: the address cannot be bound.
    """
    server = _Server(services, settings)
    listeners = await open_listeners(settings.host, settings.port, reuse_port=settings.reuse_port)
    with services.connections.of("grpc", server.count):
        await _serve(server, listeners, stop, task_status)


async def _serve(
    server: _Server,
    listeners: Sequence[trio.SocketListener],
    stop: trio.Event,
    task_status: trio.TaskStatus[tuple[str, int]],
) -> None:
    async with trio.open_nursery() as answering:
        answering.start_soon(server.answer)
        async with trio.open_nursery() as connections, trio.open_nursery() as accepting:
            serve = functools.partial(trio.serve_listeners, handler_nursery=connections)
            accepting.start_soon(serve, server.serve_connection, listeners)
            host, port = listeners[0].socket.getsockname()[:2]
            task_status.started((host, port))
            await stop.wait()
            server.drain()
            await refuse_more(listeners)
            accepting.cancel_scope.cancel()
        answering.cancel_scope.cancel()


class _Server:
    """The connections that are open, those in their TLS handshake included."""

    def __init__(self, services: EdgeServices, settings: GrpcSettings) -> None:
        self._settings = settings
        self._counts = services.limits
        templates = RequestTemplates()
        self._failures = services.failures
        self._replies = Replies(self._failures)
        self._poller = the_poller()
        self._shared = Shared(
            grpc_handlers(services, settings, templates, self._replies),
            settings.limits,
            services.limits,
            services.memory,
            threads=trio.CapacityLimiter(settings.threads),
            direct=DirectInfer.of(services, settings, templates, self._replies),
            flush=services.core.flush,
            poller=self._poller,
            failures=self._failures,
            failure_log=services.failure_log,
            request_ids=services.request_ids,
            key_name=services.access.key_name,
            access_log=services.access_log,
            unlogged=UNLOGGED,
        )
        self._count = 0
        self._connections: set[Connection] = set()
        self._is_draining = False

    def count(self) -> Open:
        return Open(self._count, sum(connection.call_count for connection in self._connections))

    async def answer(self) -> None:
        """As long as connections are to be called."""
        with self._poller.calling_last(self._shared.flush):
            await self._replies.run()

    async def serve_connection(self, stream: trio.SocketStream) -> None:
        """One client. A defect here costs this connection only."""
        if self._is_draining:  # accepted at the last moment
            await trio.aclose_forcefully(stream)
            return
        if self._count >= self._settings.max_connections:
            # Without a word: gRPC's clients take a greeting for success, and come back at once.
            self._counts.count("grpc", "max_connections")
            await trio.aclose_forcefully(stream)
            return
        self._count += 1
        try:
            await self._serve(stream)
        except Exception as error:
            self._failures.note("connection", error, "a gRPC connection failed, and ends")
        finally:
            self._count -= 1

    async def _serve(self, stream: trio.SocketStream) -> None:
        with contextlib.suppress(OSError):  # gone already
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        transport: trio.abc.Stream = stream
        if self._settings.tls is not None:
            transport = tls = server_stream(stream, self._settings.tls)
            if not await self._has_secured(tls):
                await trio.aclose_forcefully(tls)
                return
        if self._is_draining:
            await trio.aclose_forcefully(transport)
            return
        connection = Connection(transport, self._shared)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)

    async def _has_secured(self, tls: trio.SSLStream[trio.SocketStream]) -> bool:
        """Whether the peer agrees on TLS and HTTP/2, in time."""
        with trio.move_on_after(self._settings.limits.handshake_timeout):
            return await agreed_protocol(tls) == ALPN_PROTOCOL
        self._counts.count("grpc", "handshake_timeout")
        return False

    def drain(self) -> None:
        self._is_draining = True
        for connection in [*self._connections]:
            try:
                connection.drain()
            except Exception as error:
                self._failures.note("connection", error, "a gRPC connection could not be ended in order")
                connection.cancel()
