"""Event stream: sends the events of one answer, from several tasks, with comments while nothing comes.

Owned by the handler of the request. The first event sends the head, and so decides that the status is 200; what fails
before that is an error reply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import trio

from protocol.errors import ServerError
from protocol.http.exchange import BodyWriter
from protocol.http.openai.codec.chunks import DONE, KEEP_ALIVE
from protocol.http.openai.errors import error_event, openai_status
from protocol.http.reply import Headers
from protocol.sync.wakeup import WaitingTasks


@dataclass(frozen=True, slots=True)
class StreamForm:
    """What streams of one interface have around their events.

    Attributes:
        name: of the interface, for the log.
        end: the bytes after the last event.
        keep_alive: a comment, or an event that says nothing, for when nothing comes.
        error: the event of an error, which ends the stream, of the request with this id.
        status: the status that an error has outside of streams.
    """

    name: str = "OpenAI"
    end: bytes = DONE
    keep_alive: bytes = KEEP_ALIVE
    error: Callable[[ServerError, str], bytes] = error_event
    status: Callable[[ServerError], int] = openai_status


OPENAI_STREAM = StreamForm()


class EventStream:
    """`headers` are asked for with the first event.

    Attributes:
    is_cut: cancelled while it was sent, an event is not whole. Nothing is sent any more, and the client sees that its
        stream was cut off.
    """

    __slots__ = (
        "_has_started",
        "_headers",
        "_is_over",
        "_is_sending",
        "_keep_alive",
        "_sent",
        "_silence",
        "_waiting",
        "_writer",
        "is_cut",
    )

    def __init__(self, writer: BodyWriter, headers: Callable[[], Headers], keep_alive: bytes = KEEP_ALIVE) -> None:
        self._writer = writer
        self._headers = headers
        self._keep_alive = keep_alive
        self._has_started = False
        self._is_sending = False
        self._waiting = WaitingTasks()
        self._sent = 0
        self._silence = trio.CancelScope()
        self._is_over = False
        self.is_cut = False

    @property
    def has_started(self) -> bool:
        return self._writer.has_started

    async def send(self, data: bytes) -> None:
        """Send events, and wait while the client reads slowly, or another task sends."""
        while self._is_sending:
            await self._waiting.wait()
        if self.is_cut:
            return
        self._is_sending = True
        self._sent += 1
        try:
            if not self._has_started:
                if not self._writer.has_started:
                    await self._writer.start(200, self._headers())
                self._has_started = True
            await self._writer.send(data)
        except trio.Cancelled:
            self.is_cut = True
            raise
        finally:
            self._is_sending = False
            if self._waiting.waiting:
                self._waiting.wake_one()

    def send_at_once(self, data: bytes) -> bool:
        """Send events after the first ones, without waiting; False where that cannot be, and nothing was sent."""
        if self._is_sending or self.is_cut or not self._has_started or not self._writer.send_at_once(data):
            return False
        self._sent += 1
        return True

    async def keep_alive(self, seconds: float) -> None:
        """Send a comment whenever no event was sent for so long, until `stop`: proxies cut silent connections."""
        while not self._is_over:
            before = self._sent
            with trio.CancelScope() as self._silence:
                await trio.sleep(seconds)
            if self._sent == before and not (self._is_sending or self._is_over):
                await self.send(self._keep_alive)

    def stop(self) -> None:
        """No more comments; one that is being sent still goes out."""
        self._is_over = True
        self._silence.cancel()

    async def end(self) -> None:
        if not self.is_cut:
            await self._writer.end()
