"""Step slices: the events of an engine's steps, some at a time, so that a step of many generations holds nobody up.

Flow: engine worker → [step slices] → generations. A step of few events is taken at once. Of a larger one each slice is
followed by a turn of the loop, in which the answers of the slice are sent and others run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import trio

from backends.engines.worker.trioton_engine.engine import Event, Stats

# An event costs some 25 µs until its answer is sent, so a slice less than 1 ms: what others wait for.
SLICE_EVENTS = 32
# Of steps that wait. More, and all are taken at once: the loop is what slows an engine down that is too fast for it.
MOST_WAITING = 8192


class _Step:
    """One step, and how many of its events were taken."""

    __slots__ = ("events", "now", "stats", "taken")

    def __init__(self, events: Sequence[Event], stats: Stats, now: float) -> None:
        self.events = events
        self.stats = stats
        self.now = now
        self.taken = 0


class StepSlices:
    """`take` handles one event, `ended` the end of its step, both with the time at which the step came; neither may
    raise. `spawn` runs a task that ends with the worker."""

    def __init__(
        self,
        take: Callable[[Event, float], None],
        ended: Callable[[Stats, float], None],
        spawn: Callable[[Callable[[], Awaitable[object]]], None],
    ) -> None:
        self._take = take
        self._ended = ended
        self._spawn = spawn
        self._steps: deque[_Step] = deque()
        self._waiting = 0  # events
        self._is_running = False

    def put(self, events: Sequence[Event], stats: Stats, now: float) -> None:
        """Take the next step, or begin to."""
        self._steps.append(_Step(events, stats, now))
        self._waiting += len(events)
        if self._waiting > MOST_WAITING:
            while self._steps:
                self._take_slice()
        elif not self._is_running:
            self._take_slice()
            if self._steps:
                self._is_running = True
                self._spawn(self._run)

    def clear(self) -> None:
        """The worker has ended: what waits is not taken any more."""
        self._steps.clear()
        self._waiting = 0

    async def _run(self) -> None:
        try:
            while self._steps:
                await trio.lowlevel.checkpoint()
                self._take_slice()
        finally:
            self._is_running = False

    def _take_slice(self) -> None:
        """The events of one step, or some of them."""
        if not self._steps:
            return
        step = self._steps[0]
        begin, step.taken = step.taken, min(step.taken + SLICE_EVENTS, len(step.events))
        self._waiting -= step.taken - begin
        is_last = step.taken == len(step.events)
        if is_last:
            self._steps.popleft()
        for event in step.events[begin : step.taken]:
            self._take(event, step.now)
        if is_last:
            self._ended(step.stats, step.now)
