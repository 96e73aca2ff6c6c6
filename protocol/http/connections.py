"""The accept loop of an HTTP listener, and its connections, each in a task of one nursery.

hypercorn's accept loop is not used: there an error in one connection ends the server. Here it ends that connection
only. Cancelling closes the sockets.
"""

from __future__ import annotations

import logging
import random
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from time import perf_counter

import trio

from protocol.failures import CallbackFailures
from protocol.http.connection import Connection, Served
from protocol.http.date import DateHeader
from protocol.http.direct_infer import DirectInference
from protocol.http.errors import TooManyConnections, error_reply
from protocol.http.exchange import App
from protocol.http.http1.response import response_head
from protocol.http.http2.upgraded.factory import UpgradedConnections
from protocol.http.settings import GOODBYE_SECONDS, ConnectionLimits, OnLimit
from protocol.limits.request_memory import RequestMemory
from protocol.open_connections import Count, Open
from protocol.reactor.arrivals import Arrivals, Listening
from protocol.sync.sliced import SLICE_SECONDS
from protocol.sync.wakeup import Wakeup

logger = logging.getLogger(__name__)

# What TLS offers, the best first.
ALPN_PROTOCOLS = ("h2", "http/1.1")
# Clients that are told at a time that there are too many of them; others are just closed.
MAX_REFUSALS = 64
# How often connections are looked after, and so how soon it is noticed that the client of a long request has left.
LOOK_SECONDS = 0.15
# And how many in one turn of the loop, some 0.3 ms, with at least so much time before the next ones: of 10,000
# connections each is looked at every 0.8 seconds, for 2 % of a processor.
LOOKS_AT_ONCE = 128
LEAST_PAUSE_SECONDS = 0.01


async def serve_app(
    app: App,
    host: str,
    port: int,
    limits: ConnectionLimits,
    stop: trio.Event,
    *,
    on_limit: OnLimit = lambda name: None,
    direct: DirectInference | None = None,
    failures: CallbackFailures | None = None,
    memory: RequestMemory | None = None,
    tls: ssl.SSLContext | None = None,
    reuse_port: bool = False,
    leaving: trio.Event | None = None,
    counted: Callable[[Count], AbstractContextManager[None]] = lambda count: nullcontext(),
    arrivals: Arrivals | None = None,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an application until `stop` is set and the requests in flight have been answered.

    Started with the bound address once connections are accepted. From `leaving` on clients are sent away, in good
    order: each answer over HTTP/1 says that its connection ends, those without a request for `LEAVE_SECONDS` end, and
    HTTP/2 connections end by GOAWAY. New ones are still accepted, until `stop`. So no client loses a request that it
    has sent on a connection before it could know. Cancelling closes everything at once. `on_limit` is called with the
    name of each limit that refuses something. `direct` answers requests that need no task; it runs here. A connection
    that fails by a defect ends, and is counted in `failures`. `counted` is entered with what counts open connections.
    Responses that wait for HTTP/2 clients count in `memory`. With `arrivals` connections come from there, and host
    and port are of no use.

    Raises:
        OSError: the address cannot be listened on.
    """
    server = ConnectionServer(app, limits, on_limit=on_limit, direct=direct, failures=failures, memory=memory, tls=tls)
    try:
        arrivals = arrivals or await Listening.open(host, port, backlog=limits.backlog, reuse_port=reuse_port)
    except OSError as exc:
        raise OSError(exc.errno, f"cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
    with counted(server.count):
        await _serve(server, arrivals, direct, stop, leaving, task_status)


async def _serve(
    server: ConnectionServer,
    arrivals: Arrivals,
    direct: DirectInference | None,
    stop: trio.Event,
    leaving: trio.Event | None,
    task_status: trio.TaskStatus[tuple[str, int]],
) -> None:
    async with trio.open_nursery() as watching:
        watching.start_soon(server.close_when_cancelled)
        if leaving is not None:
            watching.start_soon(server.drain_when, leaving)
        watching.start_soon(server.check_times)
        if direct is not None:
            watching.start_soon(direct.run)
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                await accepting.start(arrivals.run, server.serve, connections)
                task_status.started(arrivals.address)
                await stop.wait()
                await server.drain()
                await arrivals.end()
                accepting.cancel_scope.cancel()  # this closes the listeners, too
            await server.end()
        watching.cancel_scope.cancel()


def _note_failed(failures: CallbackFailures, group: BaseExceptionGroup[Exception]) -> None:
    """A connection has ended by errors: those of the network are not defects."""
    _, defects = group.split((trio.BrokenResourceError, trio.ClosedResourceError, OSError))
    if defects is None:
        logger.debug("a connection was lost", exc_info=group)
        return
    error: BaseException = defects
    while isinstance(error, BaseExceptionGroup):  # one level for each of the nurseries on the way
        error = error.exceptions[0]
    failures.note("connection", error, "an HTTP connection failed, and ends")


class ConnectionServer:
    """The open connections. The arguments are those of `serve_app`. Once `is_leaving`, new ones are drained from the
    start."""

    def __init__(
        self,
        app: App,
        limits: ConnectionLimits,
        *,
        on_limit: OnLimit = lambda name: None,
        direct: DirectInference | None = None,
        failures: CallbackFailures | None = None,
        memory: RequestMemory | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        memory = memory or RequestMemory(sys.maxsize)
        self._failures = failures or CallbackFailures()
        self._date = DateHeader()
        self._upgraded = UpgradedConnections(app, limits, on_limit, memory)
        self._served = Served(app, limits, on_limit, self._date, self._upgraded, memory, direct, self._failures)
        self._limits = limits
        self._on_limit = on_limit
        self._tls = tls
        self._connections: set[Connection] = set()
        self._refusals: set[trio.SocketStream] = set()
        self.is_leaving = False
        self._opened = Wakeup()

    def count(self) -> Open:
        return Open(len(self._connections), sum(connection.stream_count for connection in self._connections))

    async def serve(
        self, transport: trio.SocketStream, /, *, peer: str | None = None, is_too_many: bool = False
    ) -> None:
        """Serve one client, whose failure affects no other; `transport` is closed at the end."""
        if is_too_many or len(self._connections) >= self._limits.max_connections:
            await self._refuse(transport)
            return
        with suppress(OSError):  # gone already
            transport.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection = Connection(self._served, transport, self._end_of_age(), peer, self._tls)
        self._connections.add(connection)
        if self.is_leaving:
            connection.leave()
        self._opened.wake()
        try:
            await connection.run()
        except* Exception as group:
            _note_failed(self._failures, group)
        finally:
            self._connections.discard(connection)
            with trio.move_on_after(GOODBYE_SECONDS):
                await self._close(connection)

    async def _close(self, connection: Connection) -> None:
        try:
            await connection.wire.aclose()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client was faster
        except Exception as error:
            self._failures.note("connection", error, "an HTTP connection could not be closed in order")

    async def drain_when(self, leaving: trio.Event) -> None:
        await leaving.wait()
        await self.drain()

    async def drain(self) -> None:
        """Drain the open connections; each `serve` returns when what is in flight has ended."""
        self.is_leaving = True
        for connection in [*self._connections]:
            try:
                await connection.drain()
            except Exception as error:
                self._fail(connection, error)

    async def end(self) -> None:
        """As `drain`, once no more connections are accepted."""
        await self._upgraded.end()
        for connection in [*self._connections]:
            await connection.end()

    async def check_times(self) -> None:
        """Check the timeouts of all connections periodically, and their age, some at a time. A wait ends at most a
        quarter of its timeout too late, or with thousands of connections as long as it takes to look at all."""
        period = min(LOOK_SECONDS, self._limits.idle_timeout / 4, self._limits.header_timeout / 4)
        pause = period
        async with trio.open_nursery() as retiring:
            while True:
                while not self._connections:
                    await self._opened.wait()
                await trio.sleep(pause)
                looked_at = [*self._connections]
                count = -(-len(looked_at) // LOOKS_AT_ONCE)
                pause = period if count < 2 else max(period / count, LEAST_PAUSE_SECONDS)
                for number in range(count):
                    if number:
                        await trio.sleep(pause)
                    await self._check_times_of(
                        looked_at[number * LOOKS_AT_ONCE : (number + 1) * LOOKS_AT_ONCE], retiring
                    )

    async def _check_times_of(self, connections: Sequence[Connection], retiring: trio.Nursery) -> None:
        now, end = trio.current_time(), perf_counter() + SLICE_SECONDS
        for connection in connections:
            if perf_counter() >= end:  # clients have gone, whose requests are given up
                await trio.lowlevel.checkpoint()
                end = perf_counter() + SLICE_SECONDS
            if connection not in self._connections:  # it has ended since
                continue
            try:
                connection.check_time(now)
            except Exception as error:
                self._fail(connection, error)
            if connection.is_to_retire(now):
                retiring.start_soon(self._retire, connection)

    def _end_of_age(self) -> float:
        """Spread, so that connections which began together do not end together (gRPC: 0.9 to 1.1)."""
        return trio.current_time() + self._limits.max_connection_age * random.uniform(0.9, 1.1)

    async def _retire(self, connection: Connection) -> None:
        try:
            await connection.retire()
        except Exception as error:
            self._fail(connection, error)

    def _fail(self, connection: Connection, error: Exception) -> None:
        self._failures.note("timer", error, "an HTTP connection could not be looked after, and ends")
        connection.cancel()

    async def close_when_cancelled(self) -> None:
        """Writes are shielded from cancellation; closing the sockets under them ends them."""
        try:
            await trio.sleep_forever()
        finally:
            for connection in self._connections:
                connection.wire.abort()

    async def _refuse(self, transport: trio.SocketStream) -> None:
        """Reply 503, if only few are being refused now; in TLS that would cost a handshake, so those are just
        closed."""
        error = TooManyConnections(self._limits.max_connections)
        self._on_limit(error.limit)
        if self._tls is None and len(self._refusals) < MAX_REFUSALS:
            self._refusals.add(transport)
            with trio.move_on_after(GOODBYE_SECONDS), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await transport.send_all(self._too_many(error))
                await transport.send_eof()
                while await transport.receive_some():
                    pass
            self._refusals.discard(transport)
        await trio.aclose_forcefully(transport)

    def _too_many(self, error: TooManyConnections) -> bytes:
        reply = error_reply(error)
        head = response_head(reply.status, reply.headers, self._date.line(), length=len(reply.body), closes=True)
        return b"".join((head, reply.body))
