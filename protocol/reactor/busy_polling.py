"""Busy polling: spins on `epoll` for a moment before sleeping, where recent waits were short.

On a virtual machine, to wake a sleeping process costs the waker some 15 us, and the process starts 25 us late, since
its processor has gone idle: before each request, and before each reply of a worker, which take little more themselves.
A server that spins avoids both. It sleeps where recent waits were longer, and where another process wants the core, or
a thread of its own the interpreter.

Owned by the poller, which calls `wait` in Trio's thread. A plain policy but for the clock.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Events: TypeAlias = list[tuple[int, int]]

# The part of a new wait in what is taken for usual, and how much of it counts at most, in limits.
_WEIGHT = 0.1
_LONGEST = 10
# Two looks that are further apart, in seconds: the core was another's, or the interpreter.
_INTERRUPTED = 0.0001
# In seconds; after that it tries again. Another process has more to do as a rule, a thread soon waits for something.
_REST = 0.02
_REST_OF_THREADS = 0.001


def _times_preempted() -> int:
    """How often the system has given this thread's core to another, where it tells."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


class BusyPolling:
    """`limit`, in seconds, is for how long it spins, if recent waits were shorter; 0 for never.

    All servers of a run of Trio share it, since a thread can wait in one place only; so the largest of their limits
    holds.
    """

    def __init__(
        self, look: Callable[[float, int], Events], times_preempted: Callable[[], int] = _times_preempted
    ) -> None:
        self.limit = 0.0
        self._limits: list[float] = []
        self._look = look
        self._usual = 1.0  # how long waits have taken lately
        self._rests_until = 0.0
        self._times_preempted = times_preempted
        self._preempted = 0

    @contextmanager
    def limited_to(self, seconds: float) -> Iterator[None]:
        """Within this block a server asks for waits of so many seconds to be spent spinning."""
        self._limits.append(seconds)
        self.limit = max(self._limits)
        try:
            yield
        finally:
            self._limits.remove(seconds)
            self.limit = max(self._limits, default=0.0)

    def give_up(self) -> None:
        """Sleep at once from now on, until another server begins or ends."""
        self.limit = 0.0

    def wait(self, timeout: float, most: int) -> Events:
        """As `select.epoll.poll`: returns events as soon as there are any, or nothing after so many seconds."""
        if not self.limit:
            return self._look(timeout, most)
        look, now = self._look, time.perf_counter
        began = at = now()
        found: Events = []
        if self._usual < self.limit and began >= self._rests_until:
            end = began + min(self.limit, timeout)
            while not found and at < end:
                before = at
                found = look(0, most)
                at = now()
                if at - before > _INTERRUPTED:
                    self._rests_until = at + self._rest()
                    break
        if not found:
            found = look(max(0.0, began + timeout - at), most)
            at = now()
        self._usual += _WEIGHT * (min(at - began, _LONGEST * self.limit) - self._usual)
        return found

    def _rest(self) -> float:
        """For how long it sleeps at once after an interruption."""
        before, self._preempted = self._preempted, self._times_preempted()
        return _REST_OF_THREADS if self._preempted == before else _REST
