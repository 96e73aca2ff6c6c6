"""The gRPC edge: listens, and runs a connection for each client.

Flow: [server] -> connection -> stream -> service -> core. Owned by whoever starts it, with the core to call.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

import trio
from grpclib.const import Handler

from protocol.core import InferenceCore
from protocol.grpc.codec import Codec
from protocol.grpc.connection import Connection, ConnectionLimits
from protocol.grpc.health import HealthService
from protocol.grpc.service import InferenceService

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """`port` 0 takes any free one. `max_in_flight_per_stream` bounds the requests of one ModelStreamInfer stream that
    are read and not yet answered."""

    host: str = "0.0.0.0"
    port: int = 8001
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    max_in_flight_per_stream: int = 128


async def serve_grpc(
    core: InferenceCore,
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
    server = _Server(grpc_handlers(core, settings), settings.limits)
    listeners = await trio.open_tcp_listeners(settings.port, host=settings.host)
    if settings.port == 0:  # each address of the host has got a port of its own, and only one can be told
        for listener in listeners[1:]:
            await listener.aclose()
        del listeners[1:]
    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            serve = functools.partial(trio.serve_listeners, handler_nursery=connections)
            accepting.start_soon(serve, server.serve_connection, listeners)
            host, port = listeners[0].socket.getsockname()[:2]
            task_status.started((host, port))
            await stop.wait()
            accepting.cancel_scope.cancel()
        server.drain()


def grpc_handlers(core: InferenceCore, settings: GrpcSettings) -> dict[str, Handler]:
    """Path to handler, for every call that the server has."""
    inference = InferenceService(core, max_in_flight=settings.max_in_flight_per_stream)
    return {**inference.__mapping__(), **HealthService(core).__mapping__()}


class _Server:
    """The connections that are open."""

    def __init__(self, handlers: Mapping[str, Handler], limits: ConnectionLimits) -> None:
        self._handlers = handlers
        self._limits = limits
        self._codec = Codec()
        self._connections: set[Connection] = set()
        self._is_draining = False

    async def serve_connection(self, stream: trio.SocketStream) -> None:
        """One client. A defect here costs this connection only."""
        if self._is_draining:  # accepted at the last moment
            await trio.aclose_forcefully(stream)
            return
        with contextlib.suppress(OSError):  # gone already
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection = Connection(stream, self._handlers, self._codec, self._limits)
        self._connections.add(connection)
        try:
            await connection.run()
        except Exception:
            logger.exception("a gRPC connection failed")
        finally:
            self._connections.discard(connection)

    def drain(self) -> None:
        self._is_draining = True
        for connection in self._connections:
            connection.drain()
