"""An upgraded connection: moves bytes between its transport and hypercorn's HTTP/2 protocol, with a timeout on every
wait.

    transport -> [connection] -> protocol -> the application … protocol -> transport

This stands in for hypercorn's own `TCPServer`, where a client that neither reads nor leaves holds its connection for
ever.
"""

from __future__ import annotations

import logging
import math

import trio
from h2.exceptions import ProtocolError
from hypercorn.config import Config
from hypercorn.events import Event, RawData, Updated
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState

from protocol.http.http2.upgraded.protocol import UpgradedHttp2
from protocol.http.settings import GOODBYE_SECONDS, ConnectionLimits, OnLimit
from protocol.reactor.transport import Wire

logger = logging.getLogger(__name__)

RECEIVE_SIZE = 64 * 1024


class UpgradedConnection:
    """`on_limit` is called with the name of each limit that refuses something."""

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        limits: ConnectionLimits,
        on_limit: OnLimit,
        wire: Wire,
    ) -> None:
        self._limits = limits
        self._on_limit = on_limit
        self._wire = wire
        self._tasks = TaskGroup()
        self._send_lock = trio.Lock()
        self._reading = trio.CancelScope()
        self._waiting = trio.CancelScope()  # for the next bytes
        self._deadline = math.inf  # of that wait
        self._is_gone = False  # the client has left, or takes nothing any more
        self._is_draining = False
        state = ConnectionState({})
        self._protocol = UpgradedHttp2(app, config, context, self._tasks, state, False, None, None, self._send)
        self._protocol.prepare(limits, on_limit)

    async def run(self, rest: bytes, headers: list[tuple[bytes, bytes]] | None, settings: bytes | None) -> None:
        """Serve until either side ends the connection; what still runs for it then is cancelled. `rest` has come
        already; after an upgrade there are the headers of its request, and its settings.

        Cancelling ends it at once, but for a write, which ends when the wire is closed under it.
        """
        with trio.CancelScope() as everything:
            async with self._tasks:
                with self._reading:
                    self._note_idle(True)
                    if await self._begin(rest, headers, settings):
                        await self._read()
                if not self._is_gone and self._protocol.may_get_more:
                    with trio.move_on_after(GOODBYE_SECONDS):
                        await self._say_goodbye()
                everything.cancel()

    def check_time(self, now: float) -> None:
        """Its waits have deadlines of their own."""

    async def drain(self) -> None:
        """Finish what is in flight, take no more, and let `run` return."""
        self._is_draining = True
        await self._protocol.drain()

    # From the client.

    async def _begin(self, rest: bytes, headers: list[tuple[bytes, bytes]] | None, settings: bytes | None) -> bool:
        try:
            await self._protocol.initiate(headers, settings)
            if rest:
                await self._protocol.handle(RawData(rest))
        except ProtocolError as error:
            logger.debug("an upgrade to HTTP/2 failed: %s", error)
            return False
        return True

    async def _read(self) -> None:
        while True:
            with trio.CancelScope(deadline=self._deadline) as self._waiting:
                data = await self._wire.receive(RECEIVE_SIZE)
            if self._waiting.cancelled_caught:
                self._on_limit("idle_timeout")
                await self._protocol.drain()
                return
            if not data:
                self._is_gone = True
                return
            await self._protocol.handle(RawData(data))
            if self._protocol.idle and self._deadline == math.inf:  # busy for a moment only
                self._note_idle(True)

    def _note_idle(self, is_idle: bool) -> None:
        self._deadline = trio.current_time() + self._limits.idle_timeout if is_idle else math.inf
        self._waiting.deadline = self._deadline

    # What the protocol sends.

    async def _send(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self._write(event.data)
        elif isinstance(event, Updated):
            self._note_idle(self._protocol.idle)
            if self._protocol.idle and self._is_draining:
                self._reading.cancel()
        else:  # all has been said
            self._reading.cancel()

    async def _write(self, data: bytes) -> None:
        """Shielded, as other exchanges share the connection: a frame that is lost, or partly written, would break them.
        It ends when nothing moves for `send_timeout` seconds."""
        with trio.CancelScope(shield=True):
            async with self._send_lock:
                if not self._is_gone and not await self._wire.send(data, self._limits.send_timeout, self._note_deaf):
                    self._is_gone = True  # part of a message is out, and nothing can follow it
                    self._reading.cancel()

    def _note_deaf(self) -> None:
        self._on_limit("send_timeout")

    async def _say_goodbye(self) -> None:
        """Let the client close first: closing on bytes that nobody has read would make the kernel reset the connection,
        and the client lose an answer that it has not read."""
        async with self._send_lock:
            await self._wire.send_eof()
        while await self._wire.receive(RECEIVE_SIZE):
            pass
