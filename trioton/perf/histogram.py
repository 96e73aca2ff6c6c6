"""Histogram with logarithmic buckets of constant relative width: adds without loss, whatever the number of sources.

Values are whole numbers from 0, here nanoseconds. Below 256 each has a bucket of its own; above, 128 buckets share each
power of two, so that a value read back is at most 0.4 % off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

# Buckets of each power of two, and what is exact.
_PART_BITS = 7
_PARTS = 1 << _PART_BITS
_EXACT = 2 * _PARTS
# Beyond the percentile at least so many values must lie, else it is hardly more than the maximum.
_LEAST_BEYOND = 10


def bucket_of(value: int) -> int:
    """The index of the bucket that holds a value."""
    if value < _EXACT:
        return max(0, value)
    shift = value.bit_length() - _PART_BITS - 1
    return shift * _PARTS + (value >> shift)


def bucket_bounds(index: int) -> tuple[int, int]:
    """The least value of a bucket, and the least of the next one."""
    if index < _EXACT:
        return index, index + 1
    shift = index // _PARTS - 1
    low = (index - shift * _PARTS) << shift
    return low, low + (1 << shift)


class Histogram:
    """Counts of values by bucket, with their exact number, sum, least and greatest."""

    __slots__ = ("_counts", "count", "greatest", "least", "total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total = 0
        self.least = 0
        self.greatest = 0

    def record(self, value: int) -> None:
        """Count one value."""
        index = bucket_of(value)
        self._counts[index] = self._counts.get(index, 0) + 1
        self.least = min(self.least, value) if self.count else value
        self.greatest = max(self.greatest, value)
        self.count += 1
        self.total += value

    def record_all(self, values: Sequence[int]) -> None:
        """Count each of many values; far cheaper than one by one."""
        if not values:
            return
        array = np.maximum(np.array(values, np.int64), 0)
        # The exponent of a float is the number of bits; 53 bits of nanoseconds are 104 days.
        shift = np.maximum(np.frexp(array.astype(np.float64))[1] - _PART_BITS - 1, 0)
        indices, counts = np.unique(shift * _PARTS + (array >> shift), return_counts=True)
        own = self._counts
        for index, count in zip(indices.tolist(), counts.tolist(), strict=True):
            own[index] = own.get(index, 0) + count
        least = int(array.min())
        self.least = min(self.least, least) if self.count else least
        self.greatest = max(self.greatest, int(array.max()))
        self.count += len(values)
        self.total += int(array.sum())

    def merge(self, other: Histogram) -> None:
        """Add all that another one has counted."""
        if not other.count:
            return
        own = self._counts
        for index, count in other._counts.items():
            own[index] = own.get(index, 0) + count
        self.least = min(self.least, other.least) if self.count else other.least
        self.greatest = max(self.greatest, other.greatest)
        self.count += other.count
        self.total += other.total

    @property
    def mean(self) -> float:
        """The exact mean; 0 where nothing was counted."""
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """The value below or at which `percent` of all lie, from 0 to 100; 0 where nothing was counted."""
        return self._at_rank(percent / 100 * self.count) if self.count else 0.0

    def percentiles(self, percents: Iterable[float]) -> dict[float, float]:
        """Those of the percentiles that the count allows: at least ten values must lie beyond each."""
        return {percent: self.percentile(percent) for percent in percents if self.allows(percent)}

    def allows(self, percent: float) -> bool:
        """Whether at least ten values lie beyond a percentile, and ten below."""
        beyond = self.count * (1 - percent / 100)
        return beyond >= _LEAST_BEYOND - 1e-9 and self.count * percent / 100 >= _LEAST_BEYOND - 1e-9

    def at_most(self, value: float) -> int:
        """How many are no greater than a value, its whole bucket included."""
        last = bucket_of(int(value))
        return sum(count for index, count in self._counts.items() if index <= last)

    def buckets(self) -> list[tuple[int, int, int]]:
        """Those with counts in ascending order: least value, least of the next bucket, count."""
        return [(*bucket_bounds(index), self._counts[index]) for index in sorted(self._counts)]

    def to_json(self) -> dict[str, object]:
        """As builtins, from which `from_json` makes an equal one."""
        return {
            "count": self.count,
            "total": self.total,
            "least": self.least,
            "greatest": self.greatest,
            "buckets": sorted(self._counts.items()),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Histogram:
        """Raises KeyError, TypeError, ValueError where it is none."""
        made = cls()
        buckets: Iterable[tuple[int, int]] = value["buckets"]  # type: ignore[assignment]
        made._counts = {int(index): int(count) for index, count in buckets}
        made.count, made.total = int(value["count"]), int(value["total"])  # type: ignore[call-overload]
        made.least, made.greatest = int(value["least"]), int(value["greatest"])  # type: ignore[call-overload]
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def _at_rank(self, rank: float) -> float:
        seen = 0
        for low, end, count in self.buckets():
            if seen + count >= rank:
                inside = low + (end - low) * max(0.0, rank - seen) / count if end - low > 1 else float(low)
                return float(min(max(inside, self.least), self.greatest))
            seen += count
        return float(self.greatest)
