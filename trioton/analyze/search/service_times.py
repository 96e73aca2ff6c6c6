"""Service times: how long a model computes a batch, by its number of rows."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Mean seconds by numbers of rows, ascending. `variation` is the standard deviation over the mean."""

    points: tuple[tuple[int, float], ...]
    variation: float = 0.2

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("expected the time of at least one batch size")

    def mean(self, rows: float) -> float:
        """Interpolated between the sizes that were measured; beyond as the last two go on, below as the first."""
        sizes = [size for size, _ in self.points]
        at = bisect.bisect_left(sizes, rows)
        if at == 0 or len(sizes) == 1:
            return self.points[0][1] if at == 0 else self.points[0][1] * rows / sizes[0]
        (low, low_time), (high, high_time) = self.points[min(at, len(sizes) - 1) - 1 : min(at, len(sizes) - 1) + 1]
        slope = max(0.0, (high_time - low_time) / (high - low))
        if at == len(sizes):
            return high_time + slope * (rows - high)
        return low_time + (high_time - low_time) * (rows - low) / (high - low)


def service_times(seconds: Mapping[int, float], variation: float = 0.2) -> ServiceTimes:
    return ServiceTimes(tuple(sorted((rows, max(time, 1e-7)) for rows, time in seconds.items())), variation)
