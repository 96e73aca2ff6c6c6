"""Figures of edge processes, counted where they arise and added up in the core's process, for the one scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from actors.metrics.histogram import HistogramSnapshot
from protocol.failures import CallbackFailures
from protocol.limits.counter import LimitCounter
from protocol.open_connections import OpenConnections
from protocol.quotas.accounts import Ledger
from trioton.edge_processes.messages import Figures, KeyUse
from trioton.loop_lag import BOUNDS_SECONDS, LoopLag


class RelayedCalls:
    """In the edge process: requests that it has had the core's edge answer."""

    def __init__(self) -> None:
        self._count = 0

    def note(self) -> None:
        self._count += 1

    def take(self) -> int:
        """How many there were since the last time."""
        count, self._count = self._count, 0
        return count


class FigureSource:
    """In the edge process: what has changed since the last time."""

    def __init__(
        self,
        limits: LimitCounter,
        failures: CallbackFailures,
        lag: LoopLag,
        connections: OpenConnections,
        relayed: RelayedCalls | None = None,
    ) -> None:
        self._relayed = relayed or RelayedCalls()
        self._limits = limits
        self._failures = failures
        self._lag = lag
        self._connections = connections
        self._told_limits: Counter[tuple[str, str]] = Counter()
        self._told_failures: Counter[str] = Counter()
        self._told_lags = [0] * (len(BOUNDS_SECONDS) + 1)
        self._told_seconds = 0.0

    def take(self) -> Figures:
        limits, failures = Counter(self._limits.counts()), Counter(self._failures.counts())
        lags = self._lag.snapshot()
        buckets = _buckets(lags.cumulative)
        figures = Figures(
            [(protocol, limit, count) for (protocol, limit), count in (limits - self._told_limits).items()],
            dict(failures - self._told_failures),
            [now - before for now, before in zip(buckets, self._told_lags, strict=True)],
            lags.total - self._told_seconds,
            {word: counts.streams for word, counts in self._connections.counts().items()},
            self._relayed.take(),
        )
        self._told_limits, self._told_failures = limits, failures
        self._told_lags, self._told_seconds = buckets, lags.total
        return figures


class KeyUseSource:
    """In the edge process: what was used of keys since the last time."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._told: dict[str, tuple[int, float, int]] = {}

    def take(self) -> KeyUse | None:
        """None where nothing has changed."""
        now = {name: (use.requests, use.bytes, use.running) for name, use in self._ledger.usage().items()}
        used: dict[str, tuple[int, float, int]] = {}
        for name, (requests, size, running) in now.items():
            told = self._told.get(name, (0, 0.0, 0))
            if told != (requests, size, running):
                # What is counted under another name from now on is not taken back.
                used[name] = (max(0, requests - told[0]), max(0.0, size - told[1]), running - told[2])
        self._told = now
        return KeyUse(used) if used else None


class EdgeFigures:
    """In the core's process, of one edge, over all of its restarts. `ledger` has the accounts of keys, if there are
    any."""

    def __init__(
        self,
        limits: LimitCounter,
        failures: CallbackFailures,
        ledger: Callable[[], Ledger | None] = lambda: None,
    ) -> None:
        self.streams: Mapping[str, int] = {}
        self.restarts = 0
        self.relayed = 0
        self._ledger = ledger
        self._running: Counter[str] = Counter()
        self._limits = limits
        self._failures = failures
        self._lags = [0] * (len(BOUNDS_SECONDS) + 1)
        self._seconds = 0.0

    def add(self, figures: Figures) -> None:
        for protocol, limit, count in figures.limits:
            self._limits.add(protocol, limit, count)
        for place, count in figures.failures.items():
            self._failures.add(place, count)
        if len(figures.lags) == len(self._lags):
            self._lags = [before + more for before, more in zip(self._lags, figures.lags, strict=True)]
            self._seconds += figures.lag_seconds
        self.streams = figures.streams
        self.relayed += figures.relayed

    def add_use(self, use: KeyUse) -> None:
        ledger = self._ledger()
        for name, (requests, size, running) in use.used.items():
            usage = None if ledger is None else ledger.usage_of(name)
            if usage is not None:
                usage.requests += requests
                usage.bytes += size
                usage.running += running
                self._running[name] += running

    def note_end(self) -> None:
        """The process has ended, and nothing of it runs any more."""
        self.streams = {}
        running, self._running = self._running, Counter()
        self.add_use(KeyUse({name: (0, 0.0, -count) for name, count in running.items() if count}))
        self._running.clear()

    def lag(self) -> HistogramSnapshot:
        return HistogramSnapshot(BOUNDS_SECONDS, tuple(accumulate(self._lags)), self._seconds)


def _buckets(cumulative: Sequence[int]) -> list[int]:
    return [count - before for count, before in zip(cumulative, (0, *cumulative[:-1]), strict=True)]
