"""Axes: the scale from values to places, and round numbers along it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_WANTED_TICKS = 6
_FEW_DECADES, _MANY_DECADES = 2, 8


@dataclass(frozen=True, slots=True)
class Axis:
    """What a direction of a plot means. On a logarithmic one values that are not above 0 are left out."""

    label: str
    unit: str = ""
    is_log: bool = False
    from_zero: bool = False

    @property
    def title(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def can_show(self, value: float) -> bool:
        return math.isfinite(value) and (value > 0 or not self.is_log)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values between `low` and `high` to places between `start` and `end`."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def place(self, value: float) -> float:
        low, high, at = (math.log10(each) if self.is_log else each for each in (self.low, self.high, value))
        share = min(max((at - low) / (high - low), 0.0), 1.0)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        return log_ticks(self.low, self.high) if self.is_log else linear_ticks(self.low, self.high)


def scale_of(axis: Axis, values: Iterable[float], start: float, end: float) -> Scale:
    """One that holds all values with a little room around; of no values, from 0 to 1."""
    shown = [value for value in values if axis.can_show(value)]
    if axis.is_log:
        low, high = (min(shown), max(shown)) if shown else (1.0, 10.0)
        low, high = low / 1.1, high * 1.1
        if not math.isfinite(high) or low <= 0:
            low, high = max(low, 1e-300), min(high, 1e300)
        return Scale(low, high, start, end, is_log=True)
    low, high = (min(shown), max(shown)) if shown else (0.0, 1.0)
    if axis.from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    # Half as much again where all are the same; sums of the greatest floats would be infinite.
    room = 0.05 * (high - low) if high > low else max(abs(high) * 0.5, 0.5)
    if not math.isfinite(room):
        return Scale(-1.7e308 if low < 0 else 0.0, 1.7e308, start, end)
    low_room = 0.0 if axis.from_zero and low == 0 else room
    return Scale(max(low - low_room, -1.7e308), min(high + room, 1.7e308), start, end)


def linear_ticks(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, about six."""
    rough = high / _WANTED_TICKS - low / _WANTED_TICKS
    power = 10.0 ** math.floor(math.log10(rough)) if rough >= 1e-300 else 1e-300
    step = next((power * factor for factor in (1, 2, 5) if power * factor >= rough), power * 10)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [index * step for index in range(first, min(last, first + 2 * _WANTED_TICKS) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten; between few of them 2 and 5 times each, of many only some."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= _FEW_DECADES else (1,)
    every = max(1, math.ceil((last - first) / _MANY_DECADES))
    ticks = [factor * 10.0**power for power in range(first, last + 1, every) for factor in factors]
    return [tick for tick in ticks if low <= tick <= high]
