"""Quantiles over a sliding window of observations: the summaries of `--metrics-config summary_latencies`.

Exact over the last observations, so within any error that a quantile is allowed. Old ones expire by age and by number,
which bounds the memory.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

# Triton's summaries (prometheus-cpp) forget after a minute, too.
MAX_AGE_SECONDS = 60.0
CAPACITY = 2048


@dataclass(frozen=True, slots=True)
class SummarySnapshot:
    """`count` and `total` are of all observations ever, `quantiles` of the window: a value for each quantile that was
    asked for, None where the window is empty."""

    count: int
    total: float
    quantiles: tuple[tuple[float, float | None], ...]


class SlidingWindow:
    """The latest observations: none older than `max_age` seconds, `capacity` of them at most."""

    __slots__ = ("_clock", "_count", "_entries", "_max_age", "_quantiles", "_total")

    def __init__(
        self,
        quantiles: Sequence[float],
        *,
        max_age: float = MAX_AGE_SECONDS,
        capacity: int = CAPACITY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._quantiles = tuple(quantiles)
        self._max_age = max_age
        self._clock = clock
        # When, what, and how many times.
        self._entries: deque[tuple[float, float, int]] = deque(maxlen=capacity)
        self._count = 0
        self._total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value, `count` times; it takes one place in the window."""
        self._entries.append((self._clock(), value, count))
        self._count += count
        self._total += value * count

    def frozen(self) -> SummarySnapshot:
        oldest = self._clock() - self._max_age
        while self._entries and self._entries[0][0] < oldest:
            self._entries.popleft()
        ordered = sorted((value, count) for _, value, count in self._entries)
        ranks = list(accumulate(count for _, count in ordered))
        found = tuple((quantile, _at(quantile, ordered, ranks)) for quantile in self._quantiles)
        return SummarySnapshot(self._count, self._total, found)


def _at(quantile: float, ordered: Sequence[tuple[float, int]], ranks: Sequence[int]) -> float | None:
    """The smallest value that so large a part of all observations does not exceed (nearest rank)."""
    if not ordered:
        return None
    return ordered[min(bisect_left(ranks, quantile * ranks[-1]), len(ordered) - 1)][0]
