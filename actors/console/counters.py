"""Counters of one version at one moment, and what has happened between two such moments.

Pure but for the reading of `VersionStatistics`, between two checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actors.console.quantiles import quantiles
from actors.metrics.statistics import FlushReason, VersionStatistics
from actors.metrics.watched import BOUNDS_SECONDS

FLUSHES = tuple(reason.value for reason in FlushReason)


@dataclass(frozen=True, slots=True)
class Counters:
    """`durations` are those of `actors.metrics.watched`, None while they are not watched."""

    activity: tuple[int, ...]
    successes: int
    failures: int
    inferences: int
    executions: int
    hits: int
    misses: int
    flushes: Mapping[str, int]
    durations: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, statistics: VersionStatistics, routed: int = 0) -> Counters:
        """`routed` are the requests that a traffic split has sent on; it counts nothing else itself."""
        successes, failures, hits, misses = statistics.counts()
        return cls(
            (*statistics.activity(), routed),
            successes + routed,
            failures,
            statistics.inference_count,
            statistics.execution_count,
            hits,
            misses,
            {reason.value: count for reason, count in statistics.flushes.items()},
            statistics.watched_durations(),
        )


@dataclass(frozen=True, slots=True)
class Delta:
    """What has happened within `seconds`."""

    seconds: float
    successes: int
    failures: int
    inferences: int
    executions: int
    hits: int
    misses: int
    flushes: Mapping[str, int]
    durations: NDArray[np.int64] | None

    @classmethod
    def between(cls, before: Counters, after: Counters, seconds: float) -> Delta:
        """A version that was loaded anew counts from 0 again: what is less than before is taken as it is."""
        if after.successes < before.successes or after.failures < before.failures:
            before = _ZERO
        durations = after.durations
        if durations is not None and before.durations is not None:
            durations = durations - before.durations
        return cls(
            seconds,
            after.successes - before.successes,
            after.failures - before.failures,
            after.inferences - before.inferences,
            after.executions - before.executions,
            after.hits - before.hits,
            after.misses - before.misses,
            {reason: count - before.flushes.get(reason, 0) for reason, count in after.flushes.items()},
            durations,
        )

    @property
    def rate(self) -> float:
        return _per_second(self.successes, self.seconds)

    @property
    def failure_rate(self) -> float:
        return _per_second(self.failures, self.seconds)

    @property
    def batch(self) -> float | None:
        """The mean size of a batch."""
        return round(self.inferences / self.executions, 3) if self.executions > 0 else None

    @property
    def latency(self) -> tuple[float | None, float | None]:
        """The median and the 99th percentile of whole durations, in milliseconds."""
        return (None, None) if self.durations is None else latency(self.durations)

    def point(self, queue: int) -> tuple[float | None, ...]:
        """A point of the history, in the order of `SERIES`."""
        return (
            self.rate,
            self.failure_rate,
            *self.latency,
            queue,
            self.batch,
            _per_second(self.hits, self.seconds),
            _per_second(self.misses, self.seconds),
            *(_per_second(self.flushes.get(reason, 0), self.seconds) for reason in FLUSHES),
        )


SERIES = (
    "rate",
    "failures",
    "p50",
    "p99",
    "queue",
    "batch",
    "hits",
    "misses",
    *(f"flush_{reason}" for reason in FLUSHES),
)
# Those that are 0 while nothing happens; the others have no value then.
ZERO_WHEN_IDLE = tuple(name not in ("p50", "p99", "batch") for name in SERIES)


def latency(durations: NDArray[np.int64]) -> tuple[float | None, float | None]:
    """As `Delta.latency`."""
    half, most = quantiles(BOUNDS_SECONDS, durations, (0.5, 0.99))
    return None if half is None else round(half * 1000, 4), None if most is None else round(most * 1000, 4)


_ZERO = Counters((), 0, 0, 0, 0, 0, 0, {})


def _per_second(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if seconds > 0 else 0.0
