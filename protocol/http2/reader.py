"""What comes on one HTTP/2 connection, read where it belongs.

    wire -> [reader] -> the connection

Bytes of a plain socket are read by a call of the poller, all others by the task. Where a large DATA frame is under way,
its rest is read into the memory of the body that it belongs to.
"""

from __future__ import annotations

from typing import Protocol

from protocol.http2.connection import ServerConnection
from protocol.http2.output import FrameOutput
from protocol.messages import Buffer
from protocol.reactor.poller import Poller
from protocol.reactor.transport import PlainWire, Wire
from protocol.sync.wakeup import Wakeup

RECEIVE_SIZE = 65536
MAX_RECEIVE_SIZE = 524288
# Of a frame that is under way: fewer bytes are read together with what follows them.
_IN_PLACE_FROM = 32768
# What may be read together with its end: clients open windows behind a message.
_SIZE_BEHIND = 1024


class Reading(Protocol):
    """The connection."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be read: the peer is gone, or broke the protocol."""

    def take(self, data: Buffer) -> None:
        """What has come; nothing at the end."""

    def end_burst(self) -> None:
        """All that was read at one time has been taken."""

    def room(self, stream_id: int, size: int) -> memoryview | None:
        """Where the next data of a stream belongs, at most `size` bytes, if that is known."""

    def fail(self, error: Exception) -> None:
        """What the poller has called has raised this, a defect: the connection is over."""

    def flush(self) -> None:
        """The burst is over: what it has brought may begin. The poller has that done itself."""


class WireReader:
    """Without a poller the task reads."""

    def __init__(
        self, wire: Wire, poller: Poller | None, out: FrameOutput, h2: ServerConnection, reading: Reading
    ) -> None:
        self._wire = wire
        self._plain = wire if isinstance(wire, PlainWire) else None
        self._poller = poller
        self._out = out
        self._frames = h2.frames
        self._reading = reading
        self._size = RECEIVE_SIZE  # of the next read
        self._is_in_sight = False  # of the poller
        self._looked_away = Wakeup()

    async def run(self) -> None:
        """Read until nothing more is to be read; not while the peer reads nothing itself."""
        reading = self._reading
        while not reading.is_over:
            await self._out.wait_heard()
            if self._poller is not None and self._plain is not None:
                await self._be_in_sight(self._poller, self._plain)
                continue
            room = self._room()
            if room is not None:
                reading.take(room[: await self._wire.receive_into(room)])
            else:
                size = self._size
                data = await self._wire.receive(size)
                self._size = MAX_RECEIVE_SIZE if len(data) == size else RECEIVE_SIZE
                reading.take(data)
            reading.end_burst()
            reading.flush()

    async def _be_in_sight(self, poller: Poller, plain: PlainWire) -> None:
        """Let the poller read, until there is something to wait for, or an end."""
        poller.add(plain.socket, self._read_at_once, self._fail)
        self._is_in_sight = True
        try:
            while self._is_in_sight:
                await self._looked_away.wait()
        finally:
            self._look_away()

    def _fail(self, error: Exception) -> None:
        self._look_away()
        self._reading.fail(error)

    def _look_away(self) -> None:
        if self._is_in_sight:
            assert self._poller is not None
            assert self._plain is not None
            self._is_in_sight = False
            self._poller.remove(self._plain.socket)
            self._looked_away.wake()

    def _read_at_once(self) -> None:
        """Called by the poller."""
        reading = self._reading
        self._read_burst()
        reading.end_burst()
        if reading.is_over or not self._out.is_heard:
            self._look_away()

    def _read_burst(self) -> None:
        plain, reading = self._plain, self._reading
        assert plain is not None
        room = None if self._frames.under_way is None else self._room()
        if room is None:
            size = self._size
            data = plain.receive_at_once(size)
            if data is None:
                return
            reading.take(data)
            is_filled = len(data) == size  # more has come
            if is_filled:
                room = self._room()
            self._size = MAX_RECEIVE_SIZE if is_filled and room is None else RECEIVE_SIZE
        if room is not None:  # the rest of a large message, which is mostly there too
            behind = bytearray(_SIZE_BEHIND)
            count = plain.receive_into_at_once(room, behind)
            if count is not None:
                reading.take(room[:count])
                if count > len(room) and not reading.is_over:
                    reading.take(bytes(behind[: count - len(room)]))

    def _room(self) -> memoryview | None:
        """Where the rest of a large DATA frame belongs, if that is what comes next."""
        under_way = self._frames.under_way
        if under_way is None or self._reading.is_over:
            return None
        _, stream_id, left = under_way
        return None if left < _IN_PLACE_FROM else self._reading.room(stream_id, left)
