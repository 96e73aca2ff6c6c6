"""Sliced work: a long computation in the loop, done a little at a time, so that everything else runs in between.

A generator yields wherever it may be interrupted, at most some tens of microseconds apart, and returns its result. In a
thread the same work would hold up the loop for longer, which has to wait for the interpreter's lock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

import trio

from protocol.sync.turns import PacedTurns

T = TypeVar("T")

Sliced: TypeAlias = Generator[None, None, T]

# A request may meet the end of a slice on its way in, and again on its way back.
SLICE_SECONDS = 0.0005
# What the first slices of all works may take in a row, and then of all time: most work has no other, and a thousand
# that begin in one turn of the loop would make it half a second.
FIRST_SECONDS = 0.002
FIRST_SHARE = 0.5

_TURNS = PacedTurns("sliced work")


class FirstSlices:
    """Says which works may begin at once: a policy without I/O that takes `now`, in seconds."""

    __slots__ = ("_left", "_since")

    def __init__(self) -> None:
        self._left = FIRST_SECONDS
        self._since = -math.inf

    def may_begin(self, now: float) -> bool:
        self._left = min(FIRST_SECONDS, self._left + (now - self._since) * FIRST_SHARE)
        self._since = now
        return self._left > 0

    def note(self, seconds: float) -> None:
        """One that has begun has taken so long."""
        self._left -= seconds


_FIRST: trio.lowlevel.RunVar[FirstSlices] = trio.lowlevel.RunVar("first slices")


async def run_sliced(work: Sliced[T], *, seconds: float = SLICE_SECONDS) -> T:
    """The result. Between two slices, each of so many seconds, the loop turns once. However many works there are, one
    of them goes on in each turn, after the first slice, and that is done at once while those of all works take little.
    Cancelled, the work can be gone on with."""
    first = _first_slices()
    began = time.perf_counter()
    if first.may_begin(began):
        done, result = _slice(work, seconds)
        first.note(time.perf_counter() - began)
        if done:
            return result[0]
    while True:
        async with _TURNS.place():
            done, result = _slice(work, seconds)
        if done:
            return result[0]


def _first_slices() -> FirstSlices:
    try:
        return _FIRST.get()
    except LookupError:
        first = FirstSlices()
        _FIRST.set(first)
        return first


def in_one_go(work: Sliced[T]) -> T:
    """The result, in a thread or where it takes no time."""
    _, result = _slice(work, math.inf)
    return result[0]


def _slice(work: Sliced[T], seconds: float) -> tuple[bool, list[T]]:
    """Whether it has ended, and its result."""
    end = time.perf_counter() + seconds
    while True:
        try:
            next(work)
        except StopIteration as stopped:
            return True, [stopped.value]
        if time.perf_counter() >= end:
            return False, []


@dataclass(eq=False, slots=True)
class _Run(Generic[T]):
    work: Sliced[T]
    callers: int = 0
    turn: trio.Lock = field(default_factory=trio.Lock)
    results: list[T] = field(default_factory=list)
    error: Exception | None = None

    @property
    def has_ended(self) -> bool:
        return bool(self.results) or self.error is not None


class SharedWork(Generic[T]):
    """Work that is done once for all who ask for it while it is under way. `begin` makes it.

    The first caller does it. If that one is cancelled, the next goes on where it was; with the last caller the work is
    dropped.
    """

    def __init__(self, begin: Callable[[], Sliced[T]]) -> None:
        self._begin = begin
        self._run: _Run[T] | None = None

    async def result(self) -> T:
        """Raises what the work raises, to all who wait for it."""
        run = self._run
        if run is None:
            run = self._run = _Run(self._begin())
        run.callers += 1
        try:
            async with run.turn:
                if not run.has_ended:
                    await self._go_on(run)
        finally:
            run.callers -= 1
            if self._run is run and (run.has_ended or not run.callers):
                self._run = None
        if run.error is not None:
            raise run.error
        return run.results[0]

    async def _go_on(self, run: _Run[T]) -> None:
        try:
            run.results.append(await run_sliced(run.work))
        except Exception as error:
            run.error = error
