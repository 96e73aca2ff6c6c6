"""Reads request bodies that did not arrive with their head, under size and time limits, when the application asks.

It is read only once it is wanted, so that the application can refuse a request by its head, and counted as it comes.
"""

from __future__ import annotations

from typing import Protocol

import trio

from protocol.http.body import MIN_BODY_RATE, BodyLimit, body_timeout
from protocol.http.exchange import ClientGone
from protocol.http.http1.events import Content, Refusal, Signal
from protocol.http.http1.protocol import Http1Protocol
from protocol.limits.request_memory import RequestShare
from protocol.messages import Buffer
from protocol.sync.joined import JOINED_AT_ONCE, join
from protocol.sync.sliced import run_sliced
from protocol.sync.turns import Received


class BodySource(Protocol):
    """The source of a body: the connection, behind the head."""

    async def receive(self) -> None:
        """Receive more into the protocol."""

    async def receive_into(self, view: memoryview) -> int:
        """Receive at least one byte into the given memory; returns how many. Raises ClientGone."""

    def receive_into_at_once(self, view: memoryview) -> int:
        """Receive what has come into the given memory; 0 where nothing is there, or that cannot be told."""

    async def send_continue(self) -> None:
        """Tell a client that waits for that to send the body."""


class IncomingBody:
    """Counts what `read` takes against the limits of one request, and ends a wait that is too long."""

    def __init__(
        self,
        protocol: Http1Protocol,
        source: BodySource,
        limit: BodyLimit,
        share: RequestShare,
        pause_seconds: float,
    ) -> None:
        self._protocol = protocol
        self._source = source
        self._limit = limit
        self._share = share
        self._pause_seconds = pause_seconds
        self._started = trio.current_time()
        self._received = 0
        self._paced = Received()

    async def read(self) -> Buffer:
        """The whole body, behind the head that the protocol has given.

        Raises:
            BodyTimeout: it pauses for `pause_seconds` in all, or comes more slowly than `MIN_BODY_RATE`.
            ClientGone: the client has left.
            ServerError: it is over the limit, framed as it must not be, or no memory is left for it.
        """
        size = self._protocol.content_left
        view = None if size is None else self._share.rooms.make(size)
        if view is not None:
            self._fill_at_once(view)
            if self._received == size:
                self._protocol.next_event()  # the end
                return view
        with trio.CancelScope(deadline=self._deadline()) as timing:
            return await (self._read_parts(timing) if view is None else self._fill(view, timing))
        raise body_timeout(self._received, trio.current_time() - self._started)

    def _fill_at_once(self, view: memoryview) -> None:
        """Mostly a body of usual size has come whole when its head is read, and a scope for the wait that is spared
        costs more than a system call."""
        filled = 0
        event = self._protocol.next_event()
        if isinstance(event, Content):
            filled = len(event.data)
            view[:filled] = event.data
        self._count(filled)
        if piece := self._source.receive_into_at_once(view[filled : filled + self._paced.room]):
            self._note_piece(piece)

    async def _fill(self, view: memoryview, timing: trio.CancelScope) -> Buffer:
        size = len(view)
        while True:
            await self._paced.wait()
            start = self._received
            self._note_piece(await self._source.receive_into(view[start : start + self._paced.room]))
            if self._received == size:
                break
            timing.deadline = self._deadline()
        self._protocol.next_event()  # the end
        return view

    async def _read_parts(self, timing: trio.CancelScope) -> Buffer:
        """Of a body that does not say how long it is, or that there is no room for in one piece."""
        parts: list[bytes] = []
        came = 0  # since the last count
        while True:
            event = self._protocol.next_event()
            if isinstance(event, Content):
                parts.append(event.data)
                came += len(event.data)
                continue
            self._count(came)
            came = 0
            match event:
                case Signal.END_OF_REQUEST:
                    if self._received > JOINED_AT_ONCE:
                        return await run_sliced(join(parts))
                    return parts[0] if len(parts) == 1 else b"".join(parts)
                case Refusal():
                    raise event.error
                case Signal.CLIENT_GONE:
                    raise ClientGone
                case _:
                    timing.deadline = self._deadline()
                    await self._source.receive()

    def _note_piece(self, size: int) -> None:
        """So many bytes were received past the protocol's buffer."""
        self._protocol.note_content(size)
        self._paced.note(size)
        self._count(size)

    def _count(self, size: int) -> None:
        """Bytes of content have arrived."""
        self._share.take(size)
        self._received += size
        self._limit.check(self._received)

    def _deadline(self) -> float:
        """Of the wait for the next bytes."""
        now = trio.current_time()
        return self._pause_seconds + min(now, self._started + self._received / MIN_BODY_RATE)


class StreamedBody:
    """A body that its handler reads as it comes. Implements `exchange.BodyStream`."""

    def __init__(self, protocol: Http1Protocol, source: BodySource, limit: BodyLimit, pause_seconds: float) -> None:
        self.received = 0
        self.has_ended = protocol.content_left == 0
        self._protocol = protocol
        self._source = source
        self._limit = limit
        self._pause_seconds = pause_seconds
        self._started = trio.current_time()
        if self.has_ended:
            protocol.next_event()

    async def receive(self) -> Buffer:
        while not self.has_ended:
            match self._protocol.next_event():
                case Content() as content:
                    self.received += len(content.data)
                    self._limit.check(self.received)
                    return content.data
                case Signal.END_OF_REQUEST:
                    self.has_ended = True
                case Refusal() as refusal:
                    raise refusal.error
                case Signal.CLIENT_GONE:
                    raise ClientGone
                case _:
                    await self._wait()
        return b""

    async def _wait(self) -> None:
        if not self.received:
            await self._source.send_continue()
        slowest = self._started + self.received / MIN_BODY_RATE
        with trio.move_on_at(self._pause_seconds + min(trio.current_time(), slowest)) as waiting:
            await self._source.receive()
        if waiting.cancelled_caught:
            raise body_timeout(self.received, trio.current_time() - self._started)


def read_at_once(protocol: Http1Protocol, share: RequestShare) -> Buffer | None:
    """The body, where it has come whole with its head, and its length was told; None where some is still to come.

    Raises:
        ServerError: no memory is left for it.
    """
    if not is_here(protocol):
        return None
    share.take(protocol.content_left or 0)
    return take_whole(protocol)


def is_here(protocol: Http1Protocol) -> bool:
    """Whether all of a body, or all that is left of it, has come, and its length was told."""
    size = protocol.content_left
    return size is not None and size <= len(protocol.buffer)


def take_whole(protocol: Http1Protocol) -> Buffer:
    """The body, which is here."""
    if not protocol.content_left:
        return b""
    event = protocol.next_event()
    assert isinstance(event, Content)
    protocol.next_event()  # the end
    return event.data
