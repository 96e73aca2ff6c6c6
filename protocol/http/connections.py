"""Listeners and connections: hypercorn's Trio worker, one connection at a time, in a nursery of our own.

hypercorn's `TCPServer` speaks HTTP/1.1 and HTTP/2 (with prior knowledge, or by upgrade) on one accepted stream. Its
own accept loop is not used: there an error in one connection ends the server, and a client that does not read its
response cannot be cut off. Here a connection's failure ends that connection, every write has a deadline, and
cancelling closes the sockets.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import (
    AppWrapper,
    ASGIReceiveCallable,
    ASGISendCallable,
    HTTPScope,
    Scope,
)

from protocol.http.settings import ConnectionLimits

logger = logging.getLogger(__name__)

App: TypeAlias = Callable[[HTTPScope, ASGIReceiveCallable, ASGISendCallable], Awaitable[None]]

_SEND_SIZE = 256 * 1024
_NEVER = 2**31


async def serve_app(
    app: App,
    host: str,
    port: int,
    limits: ConnectionLimits,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an ASGI application until `stop` is set and the requests in flight have been answered.

    Started with the bound address once connections are accepted. After `stop` no connection is accepted, idle ones
    are closed, and each other ends with the response to its present request. Cancelling closes everything at once.

    Raises:
        OSError: the address cannot be listened on.
    """
    context = WorkerContext(None)
    handler = partial(_serve_connection, _wrap(app), _hypercorn_config(limits), context, limits)
    listeners = await _open_listeners(host, port, limits.backlog)
    bound: tuple[str, int] = listeners[0].socket.getsockname()[:2]
    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            await accepting.start(partial(trio.serve_listeners, handler, listeners, handler_nursery=connections))
            task_status.started(bound)
            await stop.wait()
            accepting.cancel_scope.cancel()  # this closes the listeners, too
        await context.terminated.set()  # makes hypercorn close connections instead of keeping them alive


async def _open_listeners(host: str, port: int, backlog: int) -> list[trio.SocketListener]:
    try:
        return await trio.open_tcp_listeners(port, host=host, backlog=backlog)
    except OSError as exc:
        raise OSError(exc.errno, f"cannot listen on {host}:{port}: {exc.strerror or exc}") from exc


def _hypercorn_config(limits: ConnectionLimits) -> Config:
    config = Config()
    config.errorlog = logger  # its default is a handler of its own on stderr
    config.accesslog = None
    config.include_server_header = False
    config.h11_max_incomplete_size = limits.max_header_size
    config.h2_max_header_list_size = limits.max_header_size
    config.keep_alive_timeout = limits.keep_alive_timeout
    config.keep_alive_max_requests = _NEVER
    return config


def _wrap(app: App) -> AppWrapper:
    """hypercorn opens WebSockets unasked; no path of ours is one."""

    async def http_only(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "http":
            await app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000, "reason": None})  # hypercorn answers 403

    return ASGIWrapper(http_only)


async def _serve_connection(
    app: AppWrapper, config: Config, context: WorkerContext, limits: ConnectionLimits, stream: trio.SocketStream
) -> None:
    """One connection to its end, which no failure of it outlives."""
    client = ClientStream(stream, limits.send_timeout)
    # hypercorn is annotated for a TLS stream only, and takes a plain one by what it lacks (`do_handshake`).
    server = TCPServer(app, config, context, {}, cast("trio.SSLStream[trio.SocketStream]", client))
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_close_when_cancelled, stream)
            await server.run()
            nursery.cancel_scope.cancel()
    except* Exception as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):  # one level for each of hypercorn's nurseries and ours
            error = error.exceptions[0]
        logger.warning("a connection ended with an error: %r", error)
        logger.debug("the error in full", exc_info=group)


async def _close_when_cancelled(stream: trio.SocketStream) -> None:
    """hypercorn shields its writes from cancellation; closing the socket under them ends them."""
    try:
        await trio.sleep_forever()
    finally:
        stream.socket.close()


class ClientStream:
    """What hypercorn uses of a stream, with a deadline on writes: a client that stops reading is cut off."""

    def __init__(self, stream: trio.SocketStream, send_timeout: float) -> None:
        self.socket = stream.socket
        self._stream = stream
        self._send_timeout = send_timeout

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def send_all(self, data: bytes) -> None:
        """The deadline is on each piece, so that a slow reader of a large response gets it all.

        Raises:
            trio.BrokenResourceError: nothing moved for `send_timeout` seconds (the stream is then closed), or the
                client has gone.
        """
        with memoryview(data) as view:
            for start in range(0, len(view), _SEND_SIZE):
                with trio.move_on_after(self._send_timeout) as sending:
                    await self._stream.send_all(view[start : start + _SEND_SIZE])
                if sending.cancelled_caught:
                    await trio.aclose_forcefully(self._stream)  # part of a message is out: nothing can follow it
                    raise trio.BrokenResourceError(f"the client took no data for {self._send_timeout:g} seconds")

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()
