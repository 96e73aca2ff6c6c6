"""One accepted connection, from its first byte to its last: moves bytes between a stream and hypercorn's protocols.

    stream -> [connection] -> http1 or http2 -> the application -> http1 or http2 -> [connection] -> stream

This stands in for hypercorn's own `TCPServer`. There a client that neither reads nor leaves holds its connection for
ever, as does one that sends more behind a request with `Connection: close`; here every wait has an end, and whatever
runs for a connection is cancelled with it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

import trio
from h2.exceptions import ProtocolError
from hypercorn.config import Config
from hypercorn.events import Event, RawData, Updated
from hypercorn.protocol.h11 import H2CProtocolRequiredError, H2ProtocolAssumedError
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState

from protocol.http.http1 import Http1
from protocol.http.http2 import Http2
from protocol.http.settings import ConnectionLimits
from protocol.tls import agreed_protocol

logger = logging.getLogger(__name__)

OnLimit: TypeAlias = Callable[[str], None]
Stream: TypeAlias = trio.SocketStream | trio.SSLStream[trio.SocketStream]

RECEIVE_SIZE = 64 * 1024
# A client that takes such a piece of a response within `send_timeout` may go on.
SEND_SIZE = 256 * 1024
# How long a client has to read the last answer and to close its end, before the connection is closed under it.
GOODBYE_SECONDS = 2.0


class Connection:
    """`on_limit` is told the name of each limit that bites. The stream is closed by whoever made it."""

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        limits: ConnectionLimits,
        on_limit: OnLimit,
        stream: Stream,
    ) -> None:
        self._app = app
        self._config = config
        self._context = context
        self._limits = limits
        self._on_limit = on_limit
        self._stream = stream
        self._tasks = TaskGroup()
        self._protocol: Http1 | Http2 | None = None
        self._send_lock = trio.Lock()
        self._reading = trio.CancelScope()
        self._waiting = trio.CancelScope()  # for the next bytes
        self._deadline = math.inf  # of that wait
        self._is_timing_head = False
        self._is_gone = False  # the client has left, or takes nothing any more
        self._is_draining = False

    async def run(self) -> None:
        """Serve until either side ends the connection; what still runs for it then is cancelled.

        Cancelling ends it at once, but for a write, which ends when the socket is closed under it.
        """
        with trio.CancelScope() as everything:
            async with self._tasks:
                with self._reading:
                    agreed = await self._shake_hands()
                    if agreed is None:
                        return
                    await self._read(await self._started(agreed))
                if not self._is_gone and self._protocol is not None and self._protocol.may_get_more:
                    with trio.move_on_after(GOODBYE_SECONDS):
                        await self._say_goodbye()
                everything.cancel()

    async def drain(self) -> None:
        """Finish what is in flight, take no more, and let `run` return."""
        self._is_draining = True
        if self._protocol is None:
            self._reading.cancel()
        else:
            await self._protocol.drain()

    # Protocols.

    async def _shake_hands(self) -> str | None:
        """What TLS has agreed on by ALPN; empty without any. None where there is no agreement, or none in time."""
        if isinstance(self._stream, trio.SocketStream):
            return ""
        with trio.move_on_after(self._limits.header_timeout):
            return await agreed_protocol(self._stream)
        self._on_limit("header_timeout")
        return None

    async def _started(self, agreed: str) -> Http1 | Http2:
        self._note_idle(True)
        if agreed == "h2":
            return await self._change_to_http2()
        protocol = Http1(
            self._app, self._config, self._context, self._tasks, _state(), self._is_tls, None, None, self._send
        )
        protocol.limits, protocol.on_limit = self._limits, self._on_limit
        self._protocol = protocol
        return protocol

    async def _change_to_http2(
        self, rest: bytes = b"", headers: list[tuple[bytes, bytes]] | None = None, settings: bytes | None = None
    ) -> Http2:
        """Go on in HTTP/2 with the bytes that have come, and after an upgrade with its request and settings."""
        protocol = Http2(
            self._app, self._config, self._context, self._tasks, _state(), self._is_tls, None, None, self._send
        )
        protocol.prepare(self._limits, self._on_limit)
        self._protocol = protocol
        try:
            await protocol.initiate(headers, settings)
            if rest:
                await protocol.handle(RawData(rest))
        except ProtocolError as error:
            logger.debug("an upgrade to HTTP/2 failed: %s", error)
            self._reading.cancel()
        return protocol

    @property
    def _is_tls(self) -> bool:
        return isinstance(self._stream, trio.SSLStream)

    # From the client.

    async def _read(self, protocol: Http1 | Http2) -> None:
        while True:
            with trio.CancelScope(deadline=self._deadline) as self._waiting:
                data = await self._receive()
            if self._waiting.cancelled_caught:
                await self._time_out(protocol)
                return
            if not data:
                self._is_gone = True
                return
            try:
                await protocol.handle(RawData(data))
            except H2ProtocolAssumedError as change:
                protocol = await self._change_to_http2(change.data)
            except H2CProtocolRequiredError as change:
                protocol = await self._change_to_http2(change.data, change.headers, change.settings)
            self._note_progress(protocol)

    async def _receive(self) -> bytes:
        """Empty when the client has closed its end, or is lost."""
        try:
            return bytes(await self._stream.receive_some(RECEIVE_SIZE))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    def _note_progress(self, protocol: Http1 | Http2) -> None:
        """Bytes have come; whether a request came with them, the protocol knows."""
        if not protocol.idle:
            return
        if self._deadline == math.inf:  # busy for a moment only
            self._note_idle(True)
        if protocol.has_begun and not self._is_timing_head:
            self._is_timing_head = True
            self._wait_until(min(self._deadline, trio.current_time() + self._limits.header_timeout))

    async def _time_out(self, protocol: Http1 | Http2) -> None:
        if self._is_timing_head:
            await protocol.time_out()
        else:
            self._on_limit("idle_timeout")
            await protocol.drain()

    def _note_idle(self, is_idle: bool) -> None:
        self._is_timing_head = False
        self._wait_until(trio.current_time() + self._limits.idle_timeout if is_idle else math.inf)

    def _wait_until(self, deadline: float) -> None:
        self._deadline = self._waiting.deadline = deadline

    # What the protocols send.

    async def _send(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self._write(event.data)
        elif isinstance(event, Updated):
            is_idle = self._protocol is not None and self._protocol.idle
            self._note_idle(is_idle)
            if is_idle and self._is_draining:
                self._reading.cancel()
        else:  # all has been said
            self._reading.cancel()

    async def _write(self, data: bytes) -> None:
        """Shielded, because it may be of one exchange among several on the connection: a frame that is lost, or half
        out, would spoil the others. It ends when nothing moves for `send_timeout` seconds."""
        with trio.CancelScope(shield=True):
            async with self._send_lock:
                if not self._is_gone and not await self._write_in_time(data):
                    self._is_gone = True  # part of a message is out, and nothing can follow it
                    self._reading.cancel()

    async def _write_in_time(self, data: bytes) -> bool:
        """Whether the client has taken it all. Each piece has its own time, so that a slow reader gets everything."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError), memoryview(data) as view:
            for start in range(0, len(view), SEND_SIZE):
                with trio.move_on_after(self._limits.send_timeout) as sending:
                    await self._stream.send_all(view[start : start + SEND_SIZE])
                if sending.cancelled_caught:
                    self._on_limit("send_timeout")
                    return False
            return True
        return False

    async def _say_goodbye(self) -> None:
        """Let the client close first: closing on bytes that nobody has read would make the kernel reset the connection,
        and the client lose an answer that it has not read."""
        async with self._send_lock:
            if isinstance(self._stream, trio.SocketStream):
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._stream.send_eof()
        while await self._receive():
            pass


def _state() -> ConnectionState:
    return ConnectionState({})
