"""Figures of edge processes, counted where they arise and added up in the core's process, for the one scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate

from actors.metrics.histogram import HistogramSnapshot
from protocol.failures import CallbackFailures
from protocol.limits.counter import LimitCounter
from protocol.open_connections import OpenConnections
from trioton.edge_processes.messages import Figures
from trioton.loop_lag import BOUNDS_SECONDS, LoopLag


class FigureSource:
    """In the edge process: what has changed since the last time."""

    def __init__(
        self, limits: LimitCounter, failures: CallbackFailures, lag: LoopLag, connections: OpenConnections
    ) -> None:
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
        )
        self._told_limits, self._told_failures = limits, failures
        self._told_lags, self._told_seconds = buckets, lags.total
        return figures


class EdgeFigures:
    """In the core's process, of one edge, over all of its restarts."""

    def __init__(self, limits: LimitCounter, failures: CallbackFailures) -> None:
        self.streams: Mapping[str, int] = {}
        self.restarts = 0
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

    def lag(self) -> HistogramSnapshot:
        return HistogramSnapshot(BOUNDS_SECONDS, tuple(accumulate(self._lags)), self._seconds)


def _buckets(cumulative: Sequence[int]) -> list[int]:
    return [count - before for count, before in zip(cumulative, (0, *cumulative[:-1]), strict=True)]
