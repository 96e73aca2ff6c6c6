"""Event log: the events of a response that runs by itself, for clients that read them now, later, or again."""

from __future__ import annotations

from collections import deque

from protocol.errors import InvalidArgument
from protocol.sync.wakeup import WaitingTasks

# Bytes of one log. What is older is dropped.
MAX_LOG_BYTES = 8 << 20
# What an event costs beside its bytes, about.
_EVENT_OVERHEAD = 64
_MOST_AT_ONCE = 256


class EventLog:
    """Server-sent events, numbered from 0. Appended to by one task and read by any number.

    Attributes:
        size: in bytes, about.
        is_over: no event will come any more.
    """

    def __init__(self, limit: int = MAX_LOG_BYTES) -> None:
        self.size = 0
        self.is_over = False
        self._limit = limit
        self._events: deque[bytes] = deque()
        self._first = 0
        self._waiting = WaitingTasks()

    def append(self, data: bytes) -> None:
        """Events, each with the empty line that ends it."""
        for event in data.split(b"\n\n")[:-1]:
            self._events.append(event)
            self.size += len(event) + _EVENT_OVERHEAD
        self.shrink(self._limit)
        self._waiting.wake_all()

    def end(self) -> None:
        self.is_over = True
        self._waiting.wake_all()

    def shrink(self, limit: int) -> None:
        """Drop the oldest events, until so many bytes are left at most."""
        while self._events and self.size > limit:
            self.size -= len(self._events.popleft()) + _EVENT_OVERHEAD
            self._first += 1

    def read(self, place: int) -> tuple[bytes, int]:
        """Some events from that number on, and the number of the next; none where none has come yet.

        Raises:
            InvalidArgument: they are not kept any more.
        """
        if place < self._first:
            raise InvalidArgument(f"'starting_after': events before {self._first} are not kept any more")
        begin = place - self._first
        found = [self._events[index] for index in range(begin, min(len(self._events), begin + _MOST_AT_ONCE))]
        return b"".join([event + b"\n\n" for event in found]), place + len(found)

    async def wait(self) -> None:
        """Returns when something has changed; not to be called once it is over."""
        await self._waiting.wait()
