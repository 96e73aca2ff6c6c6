"""Request body of an HTTP/2 stream: assembled from DATA frames, with flow control that opens as the body is read.

What arrives before it is read is bounded by the stream's window, which is not reopened until then.
"""

from __future__ import annotations

from protocol.limits.body_rooms import BodyRooms
from protocol.messages import Buffer

# A body of less is joined from its parts.
_LARGE = 65536


class StreamBody:
    """`rooms` has the memory of large ones.

    Attributes:
        declared: bytes that it is said to have; None where nothing is said.
        received: bytes that have come.
        unacknowledged: bytes, with padding, that the client may not send again yet.
        has_ended: the client has sent all that it will send.
    """

    __slots__ = (
        *("_filled", "_is_streamed", "_large", "_parts", "_rooms"),
        *("declared", "has_ended", "received", "unacknowledged"),
    )

    def __init__(self, declared: int | None, rooms: BodyRooms | None = None) -> None:
        self.declared = declared
        self._rooms = rooms or BodyRooms()
        self.received = 0
        self.unacknowledged = 0
        self.has_ended = False
        self._parts: list[Buffer] = []
        self._large: memoryview | None = None
        self._filled = 0
        self._is_streamed = False

    @property
    def is_wrong(self) -> bool:
        """Whether its length differs from the declared one."""
        if self.declared is None:
            return False
        return self.received != self.declared if self.has_ended else self.received > self.declared

    def room(self, size: int) -> memoryview | None:
        """Where the next bytes belong, at most `size`, if that is known. They are then to be fed."""
        large = self._large
        if large is None or self._filled == len(large):
            return None
        return large[self._filled : self._filled + size]

    def feed(self, data: Buffer, flow_controlled_size: int, *, has_ended: bool) -> None:
        size = len(data)
        self.has_ended = has_ended
        self.unacknowledged += flow_controlled_size
        self.received += size
        if not size or self.is_wrong:
            return
        large = self._large
        if large is None:
            self._parts.append(data)
            if self.received == size and (self.declared or 0) > max(_LARGE, size) and not self._is_streamed:
                self._make_room(self.declared or 0)
            return
        if not (isinstance(data, memoryview) and data.obj is large.obj):
            large[self._filled : self._filled + size] = data
        self._filled += size

    def whole(self) -> Buffer:
        """The whole body, once. Nothing is copied where it came in one piece."""
        if self._large is not None:
            large, self._large = self._large, None
            return large
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def take_parts(self) -> list[Buffer] | None:
        """What `whole` would have to join, once; None where it has nothing to join."""
        if self._large is not None or len(self._parts) < 2:
            return None
        parts, self._parts = self._parts, []
        return parts

    def take(self) -> Buffer:
        """What has come since the last time, for who reads it as it comes."""
        self._is_streamed = True
        if self._large is not None:
            self._parts, self._large = [bytes(self._large[: self._filled])], None
        return self.whole()

    def drop(self) -> None:
        """Discard what has arrived."""
        self._parts.clear()
        self._large = None

    def take_unacknowledged(self) -> int:
        size, self.unacknowledged = self.unacknowledged, 0
        return size

    def _make_room(self, size: int) -> None:
        """For all of it, when the first part has come."""
        large = self._rooms.make(size)
        if large is None:
            return
        first = self._parts.pop()
        self._large = large
        self._filled = len(first)
        large[: self._filled] = first
