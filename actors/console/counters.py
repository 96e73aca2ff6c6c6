"""Counters of one version at one moment, and what has happened between two such moments.

Pure but for the reading of `VersionStatistics`, between two checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from actors.console.quantiles import quantile
from actors.metrics.statistics import FlushReason, VersionStatistics

FLUSHES = tuple(reason.value for reason in FlushReason)


@dataclass(frozen=True, slots=True)
class Counters:
    """`latencies` are the counts of the histogram of whole durations in microseconds, by its `bounds`; empty where
    there is none."""

    activity: tuple[int, ...]
    successes: int
    failures: int
    inferences: int
    executions: int
    hits: int
    misses: int
    flushes: Mapping[str, int]
    bounds: Sequence[float] = ()
    latencies: Sequence[int] = ()

    @classmethod
    def of(cls, statistics: VersionStatistics, routed: int = 0) -> Counters:
        """`routed` are the requests that a traffic split has sent on; it counts nothing else itself."""
        bounds, latencies = statistics.request_durations()
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
            bounds,
            latencies,
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
    bounds: Sequence[float]
    latencies: Sequence[int]

    @classmethod
    def between(cls, before: Counters, after: Counters, seconds: float) -> Delta:
        """A version that was loaded anew counts from 0 again: what is less than before is taken as it is."""
        if after.successes < before.successes or after.failures < before.failures or after.bounds != before.bounds:
            before = _ZERO
        earlier = before.latencies or [0] * len(after.latencies)
        return cls(
            seconds,
            after.successes - before.successes,
            after.failures - before.failures,
            after.inferences - before.inferences,
            after.executions - before.executions,
            after.hits - before.hits,
            after.misses - before.misses,
            {reason: count - before.flushes.get(reason, 0) for reason, count in after.flushes.items()},
            after.bounds,
            [now - then for now, then in zip(after.latencies, earlier, strict=True)],
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

    def milliseconds(self, share: float) -> float | None:
        """A quantile of the whole durations."""
        return milliseconds(self.bounds, self.latencies, share)

    def point(self, queue: int) -> tuple[float | None, ...]:
        """A point of the history, in the order of `SERIES`."""
        return (
            self.rate,
            self.failure_rate,
            self.milliseconds(0.5),
            self.milliseconds(0.99),
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


def milliseconds(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """A quantile of durations that were counted by bounds in microseconds."""
    found = quantile(bounds, counts, share) if counts else None
    return None if found is None else round(found / 1000, 4)


_ZERO = Counters((), 0, 0, 0, 0, 0, 0, {})


def _per_second(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if seconds > 0 else 0.0
