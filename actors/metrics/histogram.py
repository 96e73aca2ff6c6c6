"""Histograms of durations, cheap enough to be on by default. `latencies` collects observations and adds them in
bulk."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

# Upper bounds in microseconds, from what a trivial model takes to what a large one does.
DURATION_BOUNDS_US = (
    50.0, 100.0, 250.0, 500.0, 1e3, 2.5e3, 5e3, 1e4, 2.5e4, 5e4, 1e5, 2.5e5, 5e5, 1e6, 2.5e6, 5e6, 1e7,
)  # fmt: skip
# Those of the only histogram that is shown where nothing is said of them: with more, what is there of a dynamic batcher
# by default would not fit into 2 kB.
FEW_DURATION_BOUNDS_US = (1e4, 1e5, 1e6)
# Triton's bounds of nv_inference_first_response_histogram_ms.
FIRST_RESPONSE_BOUNDS_MS = (100.0, 500.0, 2000.0, 5000.0)


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """`cumulative` counts the observations up to each bound, and all of them at last (+Inf)."""

    bounds: tuple[float, ...]
    cumulative: tuple[int, ...]
    total: float


class Histogram:
    """Counts observations by upper bounds, in whatever unit the bounds are."""

    __slots__ = ("_bounds", "_bounds_array", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._bounds_array = np.array(self._bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value, `count` times. A value on a bound belongs to that bound (Prometheus: `le`)."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._total += value * count

    def observe_all(self, values: NDArray[np.float64], counts: NDArray[np.float64] | None = None) -> None:
        """Count each value once, or as often as `counts` says. Made for hundreds of them."""
        buckets = np.bincount(self._bounds_array.searchsorted(values), counts, len(self._counts))
        self._counts = [before + int(more) for before, more in zip(self._counts, buckets.tolist(), strict=True)]
        self._total += float(values.sum() if counts is None else values @ counts)

    def frozen(self) -> HistogramSnapshot:
        return HistogramSnapshot(self._bounds, tuple(accumulate(self._counts)), self._total)
