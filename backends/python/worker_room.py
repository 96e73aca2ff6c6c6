"""Room in one worker: how many batches it may have at a time, and how many bytes of their inputs.

Flow: batches → [worker room] → batches, when one may begin, in the order of who came. Who can wait parks in a line; who
cannot leaves a call to be made once there is place for another batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sized

import trio

from backends.python.channel import Channel
from backends.python.portions import BatchTooLarge

# Batches whose `execute` has returned, but which are not answered yet; with more the worker gets no further one.
MOST_LATE_BATCHES = 4096


class WorkerRoom:
    """`concurrency` batches may be in the worker, and `byte_limit` bytes of inputs; `open_batches` are all batches that
    have not ended. Nobody waits once the channel is closed."""

    def __init__(self, channel: Channel, open_batches: Sized, *, concurrency: int, byte_limit: int) -> None:
        self.concurrency = concurrency
        self.in_worker = 0
        self.byte_limit = byte_limit
        self._taken = 0
        self._open = open_batches
        self._channel = channel
        self._waiting = trio.lowlevel.ParkingLot()
        self._line: deque[object] = deque()  # who waits for room, the first in front
        self._offers: deque[Callable[[], None]] = deque()

    def may_begin(self, size: int) -> bool:
        """Whether a batch need not wait. Raises BatchTooLarge."""
        if size > self.byte_limit:
            raise BatchTooLarge
        return (
            self.in_worker < self.concurrency
            and self._taken + size <= self.byte_limit
            and not self._line
            and len(self._open) < self.concurrency + MOST_LATE_BATCHES
        )

    async def wait(self, size: int) -> None:
        """Until a batch may begin, or the channel is closed. In turn: a large batch is not passed by small ones.

        Raises BatchTooLarge.
        """
        me = object()
        self._line.append(me)
        try:
            while not (self._line[0] is me and self._has_place and self._has_bytes(size)):
                if self._channel.is_closed:
                    return
                await self._waiting.park()
        finally:
            self._line.remove(me)
            if self._line:
                self._waiting.unpark_all()

    def enter(self, size: int) -> None:
        """A batch is given to the worker, with inputs of so many bytes."""
        self._taken += size
        self.in_worker += 1

    def leave(self) -> None:
        """A batch has left the worker, which may still hold its inputs."""
        self.in_worker -= 1
        if self._line or self._offers:
            self.give()

    def give_back(self, size: int) -> None:
        """The worker holds so many bytes of inputs no more."""
        self._taken -= size
        if self._line or self._offers:
            self.give()

    def offer(self, free: Callable[[], None]) -> None:
        """Call it as soon as there is place for another batch."""
        self._offers.append(free)
        self.give()

    def withdraw(self, free: Callable[[], None] | None) -> None:
        if free is not None and free in self._offers:
            self._offers.remove(free)

    def give(self) -> None:
        """Let those go on who wait for what there is now."""
        if self._line:
            self._waiting.unpark_all()
        while self._offers and self._has_place:
            self._offers.popleft()()

    def wake_all(self) -> None:
        """The channel is closed."""
        self._waiting.unpark_all()

    @property
    def _has_place(self) -> bool:
        return self.in_worker < self.concurrency and len(self._open) < self.concurrency + MOST_LATE_BATCHES

    def _has_bytes(self, size: int) -> bool:
        """Whether inputs of so many bytes may come now. Raises BatchTooLarge where they never may."""
        if size > self.byte_limit:
            raise BatchTooLarge
        return self._taken + size <= self.byte_limit
