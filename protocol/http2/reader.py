"""Reads one server-side HTTP/2 connection, of REST and of gRPC alike, and dispatches its events.

Flow: transport -> [reader] -> `ServerConnection` -> events -> the edge's handlers.

Owned by the edge's connection, which runs `run` in a task of its nursery. Bytes of a plain socket are read by callbacks
of the poller while that task is parked; any other transport, or one without a poller, is read by the task itself. The
rest of a large DATA frame is received directly into the memory of the message that it belongs to.

Cancelling `run` removes the socket from the poller; what has been dispatched stays dispatched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Protocol

import trio
from h2.exceptions import DenialOfServiceError, ProtocolError

from protocol.http2.connection import ServerConnection
from protocol.http2.events import Event
from protocol.http2.flood_limits import FloodLimits
from protocol.http2.output import FrameOutput
from protocol.messages import Buffer
from protocol.reactor.poller import Poller
from protocol.reactor.transport import PlainWire, Wire
from protocol.sync.turns import ENDS, PacedTurns
from protocol.sync.wakeup import Wakeup

logger = logging.getLogger(__name__)

RECEIVE_SIZE = 65536
MAX_RECEIVE_SIZE = 524288
# The remainder of a DATA frame is received in place from this size on; less is read together with what follows it.
_IN_PLACE_FROM = 32768
# Room behind such a remainder: clients send WINDOW_UPDATE frames after a message.
_SIZE_BEHIND = 1024

# Frames whose events are handled in one go, some eight calls, and for how long, behind these, others are in the same
# turn of the loop: 64 calls of one write mostly are. With what is left then the task goes on in turns, one connection
# in each.
_FRAMES_AT_ONCE = 16
_MOST_SECONDS = 0.0015
# Of what is left: more of it is there than clients send of use, and others wait behind it.
_SECONDS_OF_REST = 0.0005
_REST = PacedTurns("frames of HTTP/2")

# One handler for each type of event. A ProtocolError that it raises ends the connection, whose GOAWAY is then ready.
EventHandlers = Mapping[type[Event], Callable[[Any], None]]


class Owner(Protocol):
    """The edge's connection."""

    def room(self, stream_id: int, size: int) -> memoryview | None:
        """The memory for the next data of a stream, at most `size` bytes, if it is known already."""

    def fail_stream(self, stream_id: int, error: Exception) -> None:
        """A handler has raised this, a defect, for an event of the stream: end the stream with an error."""

    def fail(self, error: Exception) -> None:
        """Reading has raised this, a defect: end every stream with an error, and send GOAWAY."""

    def flush(self) -> None:
        """End of a burst that the task has read: let what it submitted begin. The poller calls the core's itself."""


class Http2Reader:
    """`on_received` is told the time, in seconds of Trio's clock, whenever bytes have come.

    Attributes:
        is_lost: the peer has closed the connection, or cannot be written to.
        has_failed: the peer broke the protocol, or we have a defect; a GOAWAY says so.
    """

    __slots__ = (
        "_floods",
        "_frames",
        "_h2",
        "_is_new",
        "_is_polled",
        "_now",
        "_on_event",
        "_on_received",
        "_out",
        "_owner",
        "_plain",
        "_poller",
        "_size",
        "_unparked",
        "_wire",
        "has_failed",
        "is_lost",
    )

    def __init__(
        self,
        wire: Wire,
        poller: Poller | None,
        out: FrameOutput,
        h2: ServerConnection,
        floods: FloodLimits,
        owner: Owner,
        on_event: EventHandlers,
        *,
        on_received: Callable[[float], None] | None = None,
    ) -> None:
        self.is_lost = False
        self.has_failed = False
        self._wire = wire
        self._plain = wire if isinstance(wire, PlainWire) else None
        self._poller = poller
        self._out = out
        self._h2 = h2
        self._floods = floods
        self._frames = h2.frames
        self._owner = owner
        self._on_event = on_event
        self._on_received = on_received
        self._now = trio.lowlevel.current_clock().current_time
        self._size = RECEIVE_SIZE  # of the next read
        self._is_new = True  # the poller has not had the socket so far
        self._is_polled = False  # the poller has the socket, and the task is parked
        self._unparked = Wakeup()

    async def run(self) -> None:
        """Read until the peer has gone or the connection has failed, pausing while the peer reads none of the replies
        to its own frames."""
        while not (self.is_lost or self.has_failed):
            await self._out.wait_heard()
            if self._h2.has_frames_left:
                await _REST.wait()
                self.take(None)
                self.end_burst()
                self._owner.flush()
                continue
            if self._poller is not None and self._plain is not None:
                await self._read_by_poller(self._poller, self._plain)
                continue
            room = self._room()
            if room is not None:
                self.take(room[: await self._wire.receive_into(room)])
            else:
                size = self._size
                data = await self._wire.receive(size)
                if not data:
                    await ENDS.wait()
                self._size = MAX_RECEIVE_SIZE if len(data) == size else RECEIVE_SIZE
                self.take(data)
            self.end_burst()
            self._owner.flush()

    def take(self, data: Buffer | None) -> None:
        """Dispatch the events of received bytes; no bytes are the end of the stream. What takes too long is left to
        further calls with None, and nothing may be received before these."""
        if data is not None:
            if not data:
                self.is_lost = True
                return
            now = self._floods.received_at = self._now()
            if self._on_received is not None:
                self._on_received(now)
        h2, end = self._h2, 0.0
        try:
            while True:
                for event in h2.receive_data(data, _FRAMES_AT_ONCE):
                    try:
                        self._on_event[type(event)](event)
                    except ProtocolError:
                        raise
                    except Exception as error:
                        self._fail_stream(event, error)
                if not h2.has_frames_left:
                    return
                now = perf_counter()
                end = end or now + (_SECONDS_OF_REST if data is None else _MOST_SECONDS)
                data = None
                if now >= end:
                    return
        except ProtocolError as error:  # a GOAWAY that says so to the peer is ready
            logger.debug("closing an HTTP/2 connection: %s", error)
            if type(error) is DenialOfServiceError:
                self._out.count_refusal("max_header_size")
            self.has_failed = True

    def end_burst(self) -> None:
        """All that was read at one time has been taken: return flow-control credit, and write replies to its frames."""
        if not (self.is_lost or self.has_failed):
            self._out.end_burst()

    async def drop_rest(self) -> None:
        """End our direction of the stream, and read and drop what comes until the peer closes: a socket that is closed
        with unread bytes is reset, which may cost the peer the last responses."""
        await self._wire.send_eof()
        while await self._wire.receive(RECEIVE_SIZE):
            pass

    async def _read_by_poller(self, poller: Poller, plain: PlainWire) -> None:
        """Leave reading to the poller until the task has to wait for the peer, or the connection ends."""
        poller.add(plain.socket, self._on_readable, self._fail, new=self._is_new)
        self._is_new = False
        self._is_polled = True
        try:
            while self._is_polled:
                await self._unparked.wait()
        finally:
            self._unpark()

    def _unpark(self) -> None:
        """Where the peer has gone, in its turn: as many may in one moment."""
        if self._is_polled:
            assert self._poller is not None
            assert self._plain is not None
            self._is_polled = False
            self._poller.remove(self._plain.socket)
            if self.is_lost:
                ENDS.wake(self._unparked)
            else:
                self._unparked.wake()

    def _fail_stream(self, event: Event, error: Exception) -> None:
        """A defect costs the stream that it has met; one of the connection as a whole is raised."""
        stream_id = getattr(event, "stream_id", None)
        if stream_id is None:
            raise error
        self._owner.fail_stream(stream_id, error)

    def _fail(self, error: Exception) -> None:
        """The poller's callback has raised this."""
        self.has_failed = True
        self._unpark()
        self._owner.fail(error)

    def _on_readable(self) -> None:
        """The poller's callback."""
        plain = self._plain
        assert plain is not None
        room = None if self._frames.under_way is None else self._room()
        if room is None:
            size = self._size
            data = plain.receive_at_once(size)
            if data is None:
                return
            self.take(data)
            is_filled = len(data) == size and not self._h2.has_frames_left  # more has come
            if is_filled:
                room = self._room()
            self._size = MAX_RECEIVE_SIZE if is_filled and room is None else RECEIVE_SIZE
        if room is not None:  # the rest of a large message, which is mostly there too
            behind = bytearray(_SIZE_BEHIND)
            count = plain.receive_into_at_once(room, behind)
            if count is not None:
                self.take(room[:count])
                if count > len(room) and not self.has_failed:  # the frame that filled the room has left nothing
                    self.take(bytes(behind[: count - len(room)]))
        if self.is_lost or self.has_failed:
            self._unpark()
            return
        out = self._out
        out.end_burst()
        if self._h2.has_frames_left or not out.is_heard:
            self._unpark()

    def _room(self) -> memoryview | None:
        """The memory for the rest of the DATA frame that is being received, if it is large."""
        under_way = self._frames.under_way
        if under_way is None or self.has_failed:
            return None
        _, stream_id, left = under_way
        return None if left < _IN_PLACE_FROM else self._owner.room(stream_id, left)
