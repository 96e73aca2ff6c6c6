"""Arrivals of an open loop: when each request is to be sent, whatever becomes of those before. Pure.

All are made from a seed: the same seed gives the same arrivals.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Arrivals(Protocol):
    """A kind of arrivals, pickled for senders that are processes of their own."""

    def gaps(self, rate: float, seed: int) -> Iterator[float]:
        """Seconds from one arrival to the next, `rate` of them in a second on average; it may end."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """One request every `1 / rate` seconds."""

    def gaps(self, rate: float, seed: int) -> Iterator[float]:
        return itertools.repeat(1 / rate)


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent clients: exponential gaps."""

    def gaps(self, rate: float, seed: int) -> Iterator[float]:
        draw = random.Random(seed).expovariate
        while True:
            yield draw(rate)


@dataclass(frozen=True, slots=True)
class Bursty:
    """Gaps of a gamma distribution: `variation` is their standard deviation over their mean, 1 for Poisson's."""

    variation: float = 4.0

    def gaps(self, rate: float, seed: int) -> Iterator[float]:
        draw, shape = random.Random(seed).gammavariate, self.variation**-2
        while True:
            yield draw(shape, 1 / (rate * shape))


@dataclass(frozen=True, slots=True)
class Listed:
    """Gaps that were written down, in seconds, again and again. Of rate 0 as they are, else scaled to a rate. Those of
    a recording are the differences of its times (`recorded`)."""

    seconds: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Their own."""
        total = sum(self.seconds)
        return len(self.seconds) / total if total else 0.0

    def gaps(self, rate: float, seed: int) -> Iterator[float]:
        factor = self.rate / rate if rate else 1.0
        return (gap * factor for gap in itertools.cycle(self.seconds))


def recorded(times: Sequence[float]) -> Listed:
    """Arrivals at these moments, in seconds of whatever clock; the last gap is the mean one, so that it can repeat.

    Raises:
        ValueError: fewer than two of them, or all at once.
    """
    ordered = sorted(times)
    if len(ordered) < 2 or ordered[-1] == ordered[0]:
        raise ValueError("expected at least two arrivals at different times")
    gaps = [later - earlier for earlier, later in itertools.pairwise(ordered)]
    return Listed((*gaps, (ordered[-1] - ordered[0]) / len(gaps)))


def from_file(path: Path) -> Listed:
    """A file of gaps, one a line in microseconds, as perf_analyzer's `--request-intervals` has them.

    Raises:
        ValueError: it has none, or something else.
        OSError: it cannot be read.
    """
    gaps = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            gap = float(text)
        except ValueError:
            gap = -1.0
        if not 0 <= gap < 1e12:
            raise ValueError(f"line {number} of {path}: expected a gap in microseconds, got '{text:.40}'")
        gaps.append(gap / 1e6)
    if not sum(gaps):
        raise ValueError(f"{path} holds no gaps in microseconds, one a line")
    return Listed(tuple(gaps))


def schedule(arrivals: Arrivals, rate: float, seed: int, index: int = 0, count: int = 1) -> Iterator[float]:
    """Seconds from the start, ascending. Of several senders each takes every `count`-th arrival of the same whole, from
    the `index`-th on."""
    return itertools.islice(itertools.accumulate(arrivals.gaps(rate, seed)), index, None, count)
