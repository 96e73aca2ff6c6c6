"""Turns of the loop, given out: of many that want to compute for a while, only so many go on in each turn.

What comes in between two turns, a plain request for one, then waits for a bounded time, however many they are.
"""

from __future__ import annotations

import math
import time
from collections import deque
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import trio

from protocol.sync.wakeup import Wakeup

RECEIVED_AT_ONCE = 768 * 1024
RECEIVED_IN_A_TURN = 512 * 1024


class PacedTurns:
    """Of one kind of work, for all that do it in one run of Trio's.

    Attributes:
        each: how many go on in one turn of the loop.
    """

    def __init__(self, kind: str, each: int = 1) -> None:
        self.each = each
        self._places: trio.lowlevel.RunVar[trio.Semaphore] = trio.lowlevel.RunVar(f"turns of {kind}")

    def place(self) -> AbstractAsyncContextManager[None]:
        """To be held for as long as the work takes, without waiting for anything. Who waits gets it in order, in the
        turn after it was given back, and who need not wait lets the loop turn, too."""
        try:
            return self._places.get()
        except LookupError:
            places = trio.Semaphore(self.each)
            self._places.set(places)
            return places

    async def wait(self) -> None:
        """Until it is one's turn, which lasts until the task waits for something."""
        async with self.place():
            pass


@dataclass(eq=False, slots=True)
class _Burst:
    left: float
    since: float = -math.inf


class PacedBursts:
    """Of one kind of small work, for all that do it in one run of Trio's: so much of it at once as `burst` says, and
    what comes sooner than `seconds` after the one before takes of that. Beyond it `each` go on in one turn of the loop.
    """

    def __init__(self, kind: str, *, burst: int, seconds: float, each: int) -> None:
        self._burst = burst
        self._seconds = seconds
        self._bursts: trio.lowlevel.RunVar[_Burst] = trio.lowlevel.RunVar(f"bursts of {kind}")
        self._turns = PacedTurns(kind, each)

    async def wait(self) -> None:
        """Lets the loop turn, if it is time to. For each work."""
        try:
            state = self._bursts.get()
        except LookupError:
            state = _Burst(self._burst)
            self._bursts.set(state)
        now = time.perf_counter()
        state.left = min(self._burst, state.left + (now - state.since) / self._seconds)
        state.since = now
        if state.left >= 1:
            state.left -= 1
        else:
            await self._turns.wait()


@dataclass(eq=False, slots=True)
class _Sleepers:
    waiting: deque[Wakeup] = field(default_factory=deque)
    are_being_woken: bool = False


class PacedWakeups:
    """Of one kind of work: of the tasks that sleep until it is to be done, so many are woken for each turn, in order.

    Where callbacks find a thousand tasks something to do in one moment, to wake them all so that each waits for a place
    of `PacedTurns` takes 10 ms and more for the waking alone.
    """

    def __init__(self, kind: str, each: int) -> None:
        self._kind = kind
        self._each = each
        self._sleepers: trio.lowlevel.RunVar[_Sleepers] = trio.lowlevel.RunVar(f"wakeups of {kind}")

    def wake(self, sleeping: Wakeup) -> None:
        """Wake the task that waits there in one of the next turns, if it still does so then. No task need call it."""
        try:
            sleepers = self._sleepers.get()
        except LookupError:
            sleepers = _Sleepers()
            self._sleepers.set(sleepers)
        sleepers.waiting.append(sleeping)
        if not sleepers.are_being_woken:
            sleepers.are_being_woken = True
            trio.lowlevel.spawn_system_task(self._wake_all, sleepers, name=f"wakeups of {self._kind}")

    async def wait(self) -> None:
        """Until it is one's turn, which lasts until the task waits for something."""
        sleeping = Wakeup()
        self.wake(sleeping)
        await sleeping.wait()

    async def _wake_all(self, sleepers: _Sleepers) -> None:
        try:
            while sleepers.waiting:
                woken = 0
                while sleepers.waiting and woken < self._each:
                    sleeping = sleepers.waiting.popleft()
                    woken += sleeping.is_awaited
                    sleeping.wake()
                await trio.lowlevel.checkpoint()
        finally:
            sleepers.are_being_woken = False


class Received:
    """What one task receives into memory of its own, from a peer that may send as fast as it is read: half a
    millisecond's copying for each 256 kB, since the system gives the memory as it is filled. `wait` goes before each
    part, of which no more than `room` may be taken.
    """

    __slots__ = ("room",)

    def __init__(self) -> None:
        # More than later, so that most need no turn.
        self.room = RECEIVED_AT_ONCE

    async def wait(self) -> None:
        """Lets the loop turn, if it is time to."""
        if self.room <= 0:
            await _RECEIVING.wait()
            self.room = RECEIVED_IN_A_TURN

    def note(self, size: int) -> None:
        """So many bytes have come."""
        self.room -= size


_RECEIVING = PacedTurns("what is received")
# Of connections whose clients have gone. To end one takes some 0.1 ms, in several turns.
ENDS = PacedWakeups("ends of connections", 4)
