"""Whole durations of a version's requests, counted finely for people who look (the console), and not for the metrics.

Filled by `statistics` beside the histograms, only while it is watched. Cheap to read once a second for a thousand
versions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from backends.interface import BatchTiming

# Twenty to a decade, from 10 microseconds to 100 seconds: quantiles between them are exact to an eighth.
BOUNDS_SECONDS: NDArray[np.float64] = 1e-5 * 10 ** (np.arange(141) / 20)
# As many are kept before they are put into their buckets, all at once.
_KEPT = 1024


class WatchedDurations:
    """Has the methods of `actors.metrics.latencies.LatencyHistograms` that `statistics` counts by."""

    __slots__ = ("_counts", "_taken")

    def __init__(self) -> None:
        self._counts = np.zeros(len(BOUNDS_SECONDS) + 1, np.int64)
        self._taken: list[float] = []

    def count_replies(self, queued: Sequence[float], taken: Sequence[float]) -> None:
        self._taken.extend(taken)
        if len(self._taken) >= _KEPT:
            self._sort()

    def count_stream(self, seconds: float, first_response: float | None) -> None:
        self.count_replies((), (seconds,))

    def count_execution(self, timing: BatchTiming, requests: int) -> None:
        """Not counted."""

    def count_queued(self, seconds: float) -> None:
        """Not counted."""

    def counts(self) -> NDArray[np.int64]:
        """How many there were up to each of the bounds and above the one before; those above all come last."""
        self._sort()
        return self._counts.copy()

    def _sort(self) -> None:
        if self._taken:
            places = BOUNDS_SECONDS.searchsorted(self._taken)
            self._taken.clear()
            self._counts += np.bincount(places, minlength=len(self._counts))
