"""Quantiles of durations that were counted in buckets, as Prometheus estimates them.

Pure. Within a bucket the durations are taken to lie evenly, so a quantile is as exact as the buckets are narrow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def quantiles(
    bounds: NDArray[np.float64], counts: NDArray[np.int64], shares: Sequence[float]
) -> tuple[float | None, ...]:
    """The values that these shares of all are below; None where there are none. `counts` has one more than there are
    bounds, for what is above them all; a quantile there is the highest bound."""
    cumulative = counts.cumsum()
    total = int(cumulative[-1])
    if total <= 0:
        return (None,) * len(shares)
    ranks = [share * total for share in shares]
    places = cumulative.searchsorted(ranks).tolist()
    return tuple(_within(bounds, counts, cumulative, place, rank) for place, rank in zip(places, ranks, strict=True))


def _within(
    bounds: NDArray[np.float64], counts: NDArray[np.int64], cumulative: NDArray[np.int64], place: int, rank: float
) -> float:
    if place >= len(bounds):
        return float(bounds[-1])
    low = float(bounds[place - 1]) if place else 0.0
    count = int(counts[place])
    before = int(cumulative[place]) - count
    return low + (float(bounds[place]) - low) * (rank - before) / count
