"""Sampler: an actor that looks at all models once a second, as long as anybody looks at it, and some seconds longer.

Flow: model table and statistics → [sampler] → viewers. Owned by the console. A second's result, a `Sample`, is made
once for all viewers; each gets the newest, so that one who reads slowly skips some and holds up nobody. The models are
gone through in slices, so that a thousand of them hold the event loop no longer than a millisecond.

A viewer that does not read is not known by that for long: what little it gets stays in the kernel's buffers. So where
there are too many, a new one takes the place of the one that has come first; a page that is looked at asks again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import msgspec
import trio

from actors.console.process_memory import resident_bytes
from actors.console.ring import Ring
from actors.console.rows import Key, Rows, Totals
from actors.console.version_track import history
from actors.lifecycle.residence import ResidenceSnapshot
from actors.lifecycle.table import ModelTable
from protocol.console.records import History, ServerRow, Snapshot, VersionRow
from protocol.errors import Unavailable
from protocol.failures import CallbackFailures

INTERVAL_SECONDS = 1.0
# How often the loop's lag is measured in between.
LAG_SECONDS = 0.1
SLICE_SECONDS = 0.001
# For so long after the last viewer has left, so that one who asks again and again is told what has happened in between.
LINGER_SECONDS = 10.0
MOST_VIEWERS = 200
POINTS = 900
SERVER_SERIES = ("rate", "failures", "p50", "p99", "queue", "in_flight", "loop_lag", "memory", "budget_used")

_encode = msgspec.json.Encoder().encode


class Sampled(Protocol):
    """What the sampler needs of `actors.core.server_core.ServerCore`."""

    @property
    def table(self) -> ModelTable: ...

    def accepted(self) -> Mapping[tuple[str, int], int]: ...

    def residence(self) -> ResidenceSnapshot | None: ...


class Sample:
    """What was seen at one second. Implements `protocol.console.interface.Tick`."""

    __slots__ = ("_at", "_rows", "_whole", "changes", "number", "server")

    def __init__(
        self, number: int, at: float, server: ServerRow, rows: dict[Key, VersionRow], before: dict[Key, VersionRow]
    ) -> None:
        self.number = number
        self.server = server
        self._at = at
        self._rows = rows
        self._whole = b""
        changed = [row for key, row in rows.items() if before.get(key) != row]
        gone = [key for key in before if key not in rows]
        self.changes = _encode(Snapshot(number, at, server, changed, gone))

    @property
    def whole(self) -> bytes:
        if not self._whole:
            self._whole = _encode(Snapshot(self.number, self._at, self.server, list(self._rows.values())))
        return self._whole


class SampleViewer:
    """Implements `protocol.console.interface.Viewer`."""

    def __init__(self, sampler: Sampler) -> None:
        self._left = trio.Event()
        self._sampler = sampler
        self._had = -1

    async def next(self) -> Sample | None:
        found = await self._sampler.newer_than(self._had, self._left)
        if found is not None:
            self._had = found.number
        return found

    def leave(self) -> None:
        self._left.set()
        self._sampler.wake()

    async def until_left(self) -> None:
        await self._left.wait()


class Sampler:
    """`run` samples; the rest is its address."""

    def __init__(
        self,
        core: Sampled,
        failures: CallbackFailures,
        jobs: Callable[[], Mapping[str, int] | None] = lambda: None,
    ) -> None:
        """`jobs` tells how many there are in each state; None where there are none to be."""
        self._core = core
        self._jobs = jobs
        self._failures = failures
        self._rows = Rows()
        self._server = Ring(SERVER_SERIES, INTERVAL_SECONDS, POINTS)
        # The one that has come first is first.
        self._viewers: dict[SampleViewer, None] = {}
        self._looking = 0
        self._until = -1.0
        self._wanted = trio.Event()
        self._changed = trio.Event()
        self._latest: Sample | None = None
        self._number = 0
        self._before: dict[Key, VersionRow] = {}
        self._is_over = False

    async def run(self, leaving: trio.Event) -> None:
        """Sample while anybody looks, until `leaving` is set; then all viewers are told. Cancelled, it stops too."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sample_for_ever)
                await leaving.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._is_over = True
            self._changed.set()

    @contextmanager
    def viewer(self) -> Iterator[SampleViewer]:
        """As `protocol.console.interface.Console.viewer`."""
        viewer = SampleViewer(self)
        with self._looked_at():
            if len(self._viewers) >= MOST_VIEWERS:
                first = next(iter(self._viewers))
                del self._viewers[first]
                first.leave()
            self._viewers[viewer] = None
            try:
                yield viewer
            finally:
                self._viewers.pop(viewer, None)

    async def glance(self) -> Sample | None:
        """As `protocol.console.interface.Console.glance`."""
        with self._looked_at():
            return await SampleViewer(self).next()

    @contextmanager
    def _looked_at(self) -> Iterator[None]:
        if self._is_over:
            raise Unavailable("Server exiting")
        self._looking += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._looking -= 1
            self._until = trio.current_time() + LINGER_SECONDS

    async def newer_than(self, number: int, left: trio.Event) -> Sample | None:
        while not (self._is_over or left.is_set()):
            if self._latest is not None and self._latest.number > number:
                return self._latest
            await self._changed.wait()
        return None

    def wake(self) -> None:
        """Have all who wait look again."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def history(self) -> History:
        now = trio.current_time()
        slots = self._server.slots(now)
        return history(SERVER_SERIES, INTERVAL_SECONDS, slots, self._server.read(slots), time.time() - now)

    def version_history(self, key: Key) -> History:
        now = trio.current_time()
        return self._rows.rings.history(key, now, time.time())

    async def _sample_for_ever(self) -> None:
        while True:
            self._wanted = trio.Event()
            if not self._is_wanted:
                self._latest, self._before = None, {}
                self._rows.rest()
                await self._wanted.wait()
            lag, due = 0.0, trio.current_time()
            while self._is_wanted:
                with self._failures.noted("background", "the console could not be told how the models fare"):
                    await self._sample(lag)
                due = max(due + INTERVAL_SECONDS, trio.current_time())
                lag = await self._wait_until(due)

    @property
    def _is_wanted(self) -> bool:
        return self._looking > 0 or trio.current_time() < self._until

    async def _wait_until(self, due: float) -> float:
        """Returns the longest that the event loop was late meanwhile, in milliseconds."""
        longest = 0.0
        while (now := trio.current_time()) < due:
            then = min(due, now + LAG_SECONDS)
            await trio.sleep_until(then)
            longest = max(longest, trio.current_time() - then)
        return round(longest * 1000, 3)

    async def _sample(self, lag: float) -> None:
        now, totals = trio.current_time(), Totals()
        accepted = self._core.accepted()
        rows: dict[Key, VersionRow] = {}
        began = time.perf_counter()
        for row in self._rows.sample(self._core.table, accepted, totals, now):
            rows[row.key] = row
            if time.perf_counter() - began > SLICE_SECONDS:
                await trio.lowlevel.checkpoint()
                began = time.perf_counter()
        self._rows.keep(set(rows))
        server = self._server_row(totals, sum(accepted.values()), lag)
        self._server.write([getattr(server, name) for name in SERVER_SERIES], now)
        self._number += 1
        self._latest = Sample(self._number, round(time.time(), 3), server, rows, self._before)
        self._before = rows
        self.wake()

    def _server_row(self, totals: Totals, in_flight: int, lag: float) -> ServerRow:
        residence = self._core.residence()
        p50, p99 = totals.latency
        return ServerRow(
            rate=round(totals.successes, 3),
            failures=round(totals.failures, 3),
            p50=p50,
            p99=p99,
            queue=totals.queue,
            in_flight=in_flight,
            loop_lag=lag,
            memory=resident_bytes(),
            budget=None if residence is None else residence.limit,
            budget_used=None if residence is None else residence.used,
            budget_waiting=None if residence is None else residence.waiting,
            evictions=None if residence is None else sum(residence.evictions.values()),
            states=totals.states,
            jobs=self._jobs(),
            viewers=len(self._viewers),
        )
