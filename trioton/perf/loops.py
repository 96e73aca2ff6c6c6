"""Loops: closed and open. They decide when the next request is sent, and hand results to the recorder.

    moment (planned) → `Source.take` → `Caller.send` … `Result` → recorder, source, the next moment

Nothing here waits for a request: results come by calls, from which the next request may leave at once.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import trio

from trioton.perf.arrivals import schedule
from trioton.perf.caller import Caller, Part, Result, Source
from trioton.perf.clock import Clock, Timer
from trioton.perf.figures import NANOSECONDS
from trioton.perf.load import Closed, Load, Open
from trioton.perf.recorder import Recorder

# A closed loop that is refused tries again so late, as else it would do nothing but that.
_PAUSE_AFTER_ERROR = NANOSECONDS // 100
# Requests of one call of the timer; others have their turn then.
_MOST_AT_ONCE = 64


class Loop(Protocol):
    """One load on one caller.

    Attributes:
        in_flight: requests that were sent and have not ended.
    """

    in_flight: int

    async def run(self) -> None:
        """Send until `stop`; then return when all have ended. Cancelled, those in flight are left to the caller.

        Raises:
            Exception: what the source has raised.
        """

    def stop(self) -> None:
        """Send nothing more."""


class _Loop:
    """What both have in common: requests that are due, those that have been sent, and the end."""

    def __init__(self, caller: Caller, source: Source, recorder: Recorder, clock: Clock, most: int) -> None:
        self.in_flight = 0
        self._caller, self._source, self._recorder, self._clock = caller, source, recorder, clock
        self._most = most
        self._due: deque[int] = deque()  # their planned moments
        self._is_sending = False
        self._has_more = False  # which the timer's next call sends
        self._is_stopped = False
        self._has_ended = trio.Event()
        self._failure: Exception | None = None
        self._timer: Timer | None = None

    def stop(self) -> None:
        self._is_stopped = True
        for planned in self._due:  # never sent, and so no longer in flight
            self._recorder.forget(planned)
        self._due.clear()
        if not self.in_flight:
            self._has_ended.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._has_ended.set()

    def _become_due(self, planned: int) -> None:
        self._recorder.begin(planned)
        self._due.append(planned)

    def _send_due(self) -> None:
        """Send what is due and can be sent. Results that come within a send are taken within this call, not deeper."""
        if self._is_sending or self._is_stopped:
            return
        self._is_sending, self._has_more = True, False
        count = 0
        try:
            while self._due and self.in_flight < self._most and not self._is_stopped:
                if count == _MOST_AT_ONCE:  # answered at once, one after the other: others have their turn
                    self._has_more = True
                    if self._timer is not None:
                        self._timer.set(self._clock.now())
                    break
                call = self._source.take()
                if call is None:
                    break
                count += 1
                self.in_flight += 1
                self._caller.send(call, self._due.popleft(), self._take)
        finally:
            self._is_sending = False

    def _take(self, result: Result) -> None:
        try:
            self.in_flight -= 1
            self._recorder.take(result)
            self._source.ended(result)
            if self._is_stopped:
                if not self.in_flight:
                    self._has_ended.set()
                return
            self._follow(result)
            if self._due:
                self._send_due()
        except Exception as error:  # the caller's connection is not to blame
            self._fail(error)

    def _follow(self, result: Result) -> None:
        """A request has ended, and the loop goes on."""


class ClosedLoop(_Loop):
    """So many requests at a time: each is planned for the moment when another has ended."""

    def __init__(self, concurrency: int, caller: Caller, source: Source, recorder: Recorder, clock: Clock) -> None:
        super().__init__(caller, source, recorder, clock, concurrency)
        self._concurrency = concurrency
        self._paused: deque[int] = deque()  # when those that follow an error are due

    async def run(self) -> None:
        async with self._clock.timer(self._end_pause, self._fail) as self._timer:
            now = self._clock.now()
            for _ in range(self._concurrency):
                self._become_due(now)
            self._send_due()
            self._caller.flush()
            await self._has_ended.wait()
        self._raise_failure()

    def _follow(self, result: Result) -> None:
        if not result.error:
            self._become_due(result.last)
            return
        self._paused.append(self._clock.now() + _PAUSE_AFTER_ERROR)
        if len(self._paused) == 1 and self._timer is not None:
            self._timer.set(self._paused[0])

    def _end_pause(self) -> None:
        now = self._clock.now()
        while self._paused and self._paused[0] <= now:
            self._become_due(self._paused.popleft())
        self._send_due()
        self._caller.flush()
        if self._paused and not self._has_more and self._timer is not None:
            self._timer.set(self._paused[0])


class OpenLoop(_Loop):
    """Requests at planned moments, whatever becomes of those before; `most_in_flight` bounds what a server that falls
    behind can pile up."""

    def __init__(
        self, load: Open, part: Part, caller: Caller, source: Source, recorder: Recorder, clock: Clock
    ) -> None:
        super().__init__(caller, source, recorder, clock, max(1, load.most_in_flight // part.count))
        self._moments = schedule(load.arrivals, load.rate, load.seed, part.index, part.count)
        self._next: int | None = None
        self._start = 0

    async def run(self) -> None:
        async with self._clock.timer(self._send_planned, self._fail) as self._timer:
            self._start = self._clock.now()
            self._advance()
            self._send_planned()
            await self._has_ended.wait()
        self._raise_failure()

    def _advance(self) -> None:
        offset = next(self._moments, None)
        self._next = None if offset is None else self._start + round(offset * NANOSECONDS)

    def _send_planned(self) -> None:
        if self._is_stopped:
            return
        now = self._clock.now
        self._send_due()
        for _ in range(_MOST_AT_ONCE):
            planned = self._next
            if planned is None or planned > now():
                break
            self._become_due(planned)
            self._send_due()
            self._advance()
        self._caller.flush()
        if self._next is not None and self._timer is not None:
            self._timer.set(now() if self._has_more else self._next)


def loop_of(load: Load, part: Part, caller: Caller, source: Source, recorder: Recorder, clock: Clock) -> Loop:
    """The loop of one sender's part of a load."""
    if isinstance(load, Open):
        return OpenLoop(load, part, caller, source, recorder, clock)
    return ClosedLoop(share(load, part), caller, source, recorder, clock)


def share(load: Closed, part: Part) -> int:
    """How many of the requests of a closed loop are those of one sender."""
    return load.concurrency // part.count + (part.index < load.concurrency % part.count)
