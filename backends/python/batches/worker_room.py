"""Admission to one worker: limits the batches that it has at a time, and the bytes of their inputs.

Flow: batches → [worker room] → batches, when one may begin, in the order of who came. Who can wait parks in a line; who
cannot leaves a call to be made once there is place for another batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sized

import trio

from backends.python.batches.open_batch import OpenBatch
from backends.python.batches.portions import BatchTooLarge
from backends.python.wire.channel import Channel

# Batches whose `execute` has returned, but which are not answered yet; with more the worker gets no further one.
MOST_LATE_BATCHES = 4096


class WorkerRoom:
    """`concurrency` batches may be in the worker, and `byte_limit` bytes of inputs; `in_worker` are there, and
    `open_batches` are all that have not ended. Nobody waits once the channel is closed."""

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

    def enter(self, size: int) -> bool:
        """Admit a batch with inputs of so many bytes, if it need not wait; returns whether that was done.

        Raises BatchTooLarge.
        """
        if size > self.byte_limit:
            raise BatchTooLarge
        if self._line or not self._has_room(size):
            return False
        self._taken += size
        self.in_worker += 1
        return True

    async def wait(self, size: int) -> None:
        """Wait until a batch is admitted; also returns once the channel is closed. First come, first served: small
        batches do not overtake a large one. Cancelled, it is not admitted.

        Raises BatchTooLarge.
        """
        if size > self.byte_limit:
            raise BatchTooLarge
        me = object()
        self._line.append(me)
        try:
            while not (self._line[0] is me and self._has_room(size)) and not self._channel.is_closed:
                await self._waiting.park()
        finally:
            self._line.remove(me)
            if self._line:
                self._waiting.unpark_all()
        self._taken += size
        self.in_worker += 1

    def leave(self, batch: OpenBatch) -> None:
        """A batch has ended: release its room."""
        if not batch.has_left:
            batch.has_left = True
            self.in_worker -= 1
        self._taken -= batch.input_size
        batch.input_size = 0
        if self._offers or self._line:
            self.withdraw(batch)
            self.give()

    def leave_place(self, batch: OpenBatch, *, with_inputs: bool) -> None:
        """A batch has left the worker, but for its response senders; those may hold its inputs, if it has not left with
        them."""
        batch.has_left = True
        self.in_worker -= 1
        if with_inputs:
            self._taken -= batch.input_size
            batch.input_size = 0
        self.give()

    def offer(self, free: Callable[[], None]) -> None:
        """Register a callback for when there is room for another batch."""
        self._offers.append(free)
        self.give()

    def is_offered(self, batch: OpenBatch) -> bool:
        """Whether the callback of a batch is registered, and has not been made."""
        return batch.free is not None and batch.free in self._offers

    def withdraw(self, batch: OpenBatch) -> None:
        """Remove the callback of a batch."""
        if batch.free is not None and batch.free in self._offers:
            self._offers.remove(batch.free)

    def give(self) -> None:
        """Admit those that wait for what is available now."""
        if self._line:
            self._waiting.unpark_all()
        while self._offers and self._has_room(0) and not self._channel.is_closed:
            self._offers.popleft()()

    def wake_all(self) -> None:
        """The channel is closed: nobody waits any more."""
        self._waiting.unpark_all()

    def _has_room(self, size: int) -> bool:
        return (
            self.in_worker < self.concurrency
            and self._taken + size <= self.byte_limit
            and len(self._open) < self.concurrency + MOST_LATE_BATCHES
        )
