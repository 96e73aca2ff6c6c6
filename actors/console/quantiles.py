"""Quantiles of what was counted between two readings of a histogram, as Prometheus estimates them.

Pure. Within a bucket the durations are taken to lie evenly, so a quantile is as exact as the buckets are narrow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """The value that `share` of all are below; None where there are none. `counts` has one more than there are bounds,
    for what is above them all; a quantile there is the highest bound."""
    cumulative = list(accumulate(counts))
    total = cumulative[-1]
    if total <= 0:
        return None
    rank = share * total
    place = bisect_left(cumulative, rank)
    if place >= len(bounds):
        return bounds[-1]
    low = bounds[place - 1] if place else 0.0
    before = cumulative[place] - counts[place]
    return low + (bounds[place] - low) * (rank - before) / counts[place]
