"""Confidence intervals of 95 % from what successive slices of a measurement have shown. Pure.

Neighbouring requests share batches, queues and pauses, so they are not independent. Slices are joined into some twenty
batches, each long against such ties, and the interval comes from how far the batches are apart (batch means).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from trioton.perf.figures import Figures, joined
from trioton.perf.histogram import Histogram

_Z = 1.959964
_MOST_BATCHES = 20
_LEAST_BATCHES = 5


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure, and how far off it may be to either side; infinite where nothing is known of that."""

    value: float
    margin: float = math.inf

    @property
    def relative(self) -> float:
        """The margin as a part of the value."""
        return self.margin / self.value if self.value else math.inf

    def __str__(self) -> str:
        return f"{self.value:g} ±{self.margin:g}"


def student(degrees: int) -> float:
    """The factor of a two-sided interval of 95 % from so many degrees of freedom, within 1 % from 4 on."""
    z = _Z
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def batches(slices: Sequence[Figures], most: int = _MOST_BATCHES) -> list[Figures]:
    """The slices joined into at most so many batches of as many slices each; what does not fill the last is left out at
    the beginning."""
    size = max(1, len(slices) // most)
    count = min(len(slices) // size, most)
    start = len(slices) - size * count
    return [joined(slices[start + size * index : start + size * (index + 1)]) for index in range(count)]


def of_values(values: Sequence[float]) -> float:
    """The margin of the mean of independent values; infinite where they are too few to tell."""
    if len(values) < _LEAST_BATCHES:
        return math.inf
    return student(len(values) - 1) * stdev(values) / math.sqrt(len(values))


def rate(slices: Sequence[Figures]) -> Estimate:
    """Of requests that succeeded, a second."""
    return Estimate(joined(slices).rate, of_values([each.rate for each in batches(slices)]))


def mean(slices: Sequence[Figures], part: Callable[[Figures], Histogram]) -> Estimate:
    """Of the mean of one of the histograms, in its unit."""
    found = [part(each) for each in batches(slices)]
    values = [each.mean for each in found if each.count]
    whole = part(joined(slices)).mean
    return Estimate(whole, of_values(values) if len(values) == len(found) else math.inf)


def percentile(slices: Sequence[Figures], percent: float, part: Callable[[Figures], Histogram]) -> Estimate:
    """Of a percentile of one of the histograms, in its unit.

    Where batches hold enough values, from how far their percentiles are apart; else from the ranks between which the
    percentile lies if values were independent. The wider one where both can be had.
    """
    whole = part(joined(slices))
    if not whole.count:
        return Estimate(0.0)
    value = whole.percentile(percent)
    margin = _rank_margin(whole, percent)
    for most in (_MOST_BATCHES, 10, _LEAST_BATCHES):
        found = [part(each) for each in batches(slices, most)]
        if len(found) >= _LEAST_BATCHES and all(each.allows(percent) for each in found):
            spread = of_values([each.percentile(percent) for each in found])
            return Estimate(value, max(spread, margin) if math.isfinite(margin) else spread)
    return Estimate(value, margin)


def _rank_margin(whole: Histogram, percent: float) -> float:
    count, share = whole.count, percent / 100
    if count * min(share, 1 - share) < 1:
        return math.inf
    width = _Z * math.sqrt(share * (1 - share) / count)
    if share - width <= 0 or share + width >= 1:
        return math.inf
    low, high = (whole.percentile(100 * edge) for edge in (share - width, share + width))
    return (high - low) / 2


def half_width(values: Sequence[float]) -> Estimate:
    """The mean of independent values with its margin."""
    return Estimate(fmean(values) if values else 0.0, of_values(values))
