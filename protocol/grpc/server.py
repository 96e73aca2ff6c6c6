"""The gRPC server: accept loop, TLS handshake, and a connection task for each client.

Flow: [server] -> connection -> stream -> service -> core. Owned by whoever starts it, with what it is to serve.
"""

from __future__ import annotations

import contextlib
import functools
import socket

import trio

from protocol.grpc.access import UNLOGGED
from protocol.grpc.codec.request_templates import RequestTemplates
from protocol.grpc.connection.calls import Shared
from protocol.grpc.connection.connection import Connection
from protocol.grpc.inference.direct_infer import DirectInfer
from protocol.grpc.services.handlers import grpc_handlers
from protocol.grpc.settings import ALPN_PROTOCOL, ConnectionLimits, GrpcSettings, Keepalive
from protocol.open_connections import Open, OpenConnections
from protocol.reactor.arrivals import Arrivals, Listening
from protocol.reactor.drivers import the_poller
from protocol.reactor.replies import Replies
from protocol.reactor.tls_wire import TlsWire
from protocol.services import EdgeServices

__all__ = ["ConnectionLimits", "GrpcSettings", "Keepalive", "serve_calls", "serve_grpc"]


async def serve_grpc(
    services: EdgeServices,
    settings: GrpcSettings,
    stop: trio.Event,
    *,
    arrivals: Arrivals | None = None,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` is set, then take no more and return when every call in progress has ended.

    Started with the address that it listens on; with `arrivals` connections come from there. Cancelling means: stop
    now, with all calls cancelled.

    Raises:
        OSError: the address cannot be bound.
    """
    templates = RequestTemplates()
    replies = Replies(services.failures)
    shared = Shared(
        grpc_handlers(services, settings, templates, replies),
        settings.limits,
        services.limits,
        services.memory,
        threads=trio.CapacityLimiter(settings.threads),
        direct=DirectInfer.of(services, settings, templates, replies),
        flush=services.core.flush,
        poller=the_poller(),
        failures=services.failures,
        failure_log=services.failure_log,
        request_ids=services.request_ids,
        key_name=services.access.key_name,
        access_log=services.access_log,
        unlogged=UNLOGGED,
    )
    run = functools.partial(serve_calls, shared, settings, replies, services.connections, stop)
    await run(arrivals=arrivals, task_status=task_status)


async def serve_calls(
    shared: Shared,
    settings: GrpcSettings,
    replies: Replies,
    counted: OpenConnections,
    stop: trio.Event,
    *,
    arrivals: Arrivals | None = None,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """As `serve_grpc`, with the handlers of `shared`, which has a poller. `replies` are sent with their bursts."""
    server = _Server(settings, shared, replies)
    arrivals = arrivals or await Listening.open(settings.host, settings.port, reuse_port=settings.reuse_port)
    with counted.of("grpc", server.count):
        await _serve(server, arrivals, stop, task_status)


async def _serve(
    server: _Server,
    arrivals: Arrivals,
    stop: trio.Event,
    task_status: trio.TaskStatus[tuple[str, int]],
) -> None:
    async with trio.open_nursery() as answering:
        answering.start_soon(server.answer)
        async with trio.open_nursery() as connections, trio.open_nursery() as accepting:
            accepting.start_soon(arrivals.run, server.serve_connection, connections)
            task_status.started(arrivals.address)
            await stop.wait()
            server.drain()
            await arrivals.end()
            accepting.cancel_scope.cancel()
        answering.cancel_scope.cancel()


class _Server:
    """The connections that are open, those in their TLS handshake included."""

    def __init__(self, settings: GrpcSettings, shared: Shared, replies: Replies) -> None:
        assert shared.poller is not None
        self._settings = settings
        self._shared = shared
        self._replies = replies
        self._poller = shared.poller
        self._counts = shared.counts
        self._failures = shared.failures
        self._count = 0
        self._connections: set[Connection] = set()
        self._is_draining = False

    def count(self) -> Open:
        return Open(self._count, sum(connection.call_count for connection in self._connections))

    async def answer(self) -> None:
        """As long as connections are to be called."""
        with self._poller.calling_last(self._shared.flush):
            await self._replies.run()

    async def serve_connection(
        self, stream: trio.SocketStream, /, *, peer: str | None = None, is_too_many: bool = False
    ) -> None:
        """One client. A defect here costs this connection only."""
        if self._is_draining:  # accepted at the last moment
            await trio.aclose_forcefully(stream)
            return
        if is_too_many or self._count >= self._settings.max_connections:
            # Without a word: gRPC's clients take a greeting for success, and come back at once.
            self._counts.count("grpc", "max_connections")
            await trio.aclose_forcefully(stream)
            return
        self._count += 1
        try:
            await self._serve(stream, peer)
        except Exception as error:
            self._failures.note("connection", error, "a gRPC connection failed, and ends")
        finally:
            self._count -= 1

    async def _serve(self, stream: trio.SocketStream, peer: str | None) -> None:
        with contextlib.suppress(OSError):  # gone already
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._settings.tls is None:
            await self._run(Connection(stream, self._shared, peer))
            return
        async with contextlib.aclosing(TlsWire(stream, self._settings.tls, peer)) as secured:
            if await self._has_secured(secured) and not self._is_draining:
                await self._run(Connection(secured, self._shared))

    async def _run(self, connection: Connection) -> None:
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)

    async def _has_secured(self, wire: TlsWire) -> bool:
        """Whether the peer agrees on TLS and HTTP/2, in time."""
        with trio.move_on_after(self._settings.limits.handshake_timeout):
            return await wire.shake_hands() == ALPN_PROTOCOL
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
