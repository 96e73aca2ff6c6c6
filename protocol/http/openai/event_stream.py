"""Event stream: sends the events of one answer, from several tasks, with comments while nothing comes.

Owned by the handler of the request. The first event sends the head, and so decides that the status is 200; what fails
before that is an error reply.
"""

from __future__ import annotations

import trio

from protocol.http.exchange import BodyWriter
from protocol.http.openai.codec.chunks import KEEP_ALIVE
from protocol.http.reply import Headers
from protocol.sync.wakeup import WaitingTasks


class EventStream:
    """Cancelled while it sends, it leaves an event that is not whole: nothing may be sent any more."""

    __slots__ = ("_headers", "_is_sending", "_sent", "_waiting", "_writer")

    def __init__(self, writer: BodyWriter, headers: Headers) -> None:
        self._writer = writer
        self._headers = headers
        self._is_sending = False
        self._waiting = WaitingTasks()
        self._sent = 0

    @property
    def has_started(self) -> bool:
        return self._writer.has_started

    async def send(self, data: bytes) -> None:
        """Send events, and wait while the client reads slowly, or another task sends."""
        while self._is_sending:
            await self._waiting.wait()
        self._is_sending = True
        self._sent += 1
        try:
            if not self._writer.has_started:
                await self._writer.start(200, self._headers)
            await self._writer.send(data)
        finally:
            self._is_sending = False
            self._waiting.wake_one()

    async def keep_alive(self, seconds: float) -> None:
        """Send a comment whenever no event was sent for so long, for ever: proxies cut silent connections."""
        while True:
            before = self._sent
            await trio.sleep(seconds)
            if self._sent == before and not self._is_sending:
                await self.send(KEEP_ALIVE)

    async def end(self) -> None:
        await self._writer.end()
