"""Search for the greatest rate of an open loop at which a model keeps a bound on its latency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import trio

from trioton.perf.arrivals import Arrivals, Poisson
from trioton.perf.bounds import LatencyBound
from trioton.perf.load import Closed, Open
from trioton.perf.measurement import Ends, Measurement
from trioton.perf.session import Progress, Session

# Of the offered rate; a model that answers less falls behind, whatever the latency of what it has answered.
_LEAST_SHARE = 0.95
_MOST_ERROR_SHARE = 0.01
_MOST_STEPS = 40


class RateSearch:
    """Which rate to try next: doubled until the bound is missed, then halved between (in logarithms). Pure.

    Attributes:
        kept: the greatest rate known to keep the bound, 0 for none.
        missed: the least one known to miss it, infinite for none.
    """

    def __init__(self, first: float, precision: float) -> None:
        self.kept = 0.0
        self.missed = math.inf
        self._first, self._precision = first, precision
        self._steps = 0

    def next_rate(self) -> float | None:
        """None where the rates are near enough to each other, or nothing keeps the bound."""
        self._steps += 1
        if self._steps > _MOST_STEPS or self.missed <= self._first / 1024:
            return None
        if math.isinf(self.missed):
            return 2 * self.kept if self.kept else self._first
        if not self.kept:
            return self.missed / 2
        if self.missed <= self.kept * (1 + self._precision):
            return None
        return math.sqrt(self.kept * self.missed)

    def judge(self, rate: float, *, is_kept: bool) -> None:
        """What a measurement has shown. Where noise contradicts what was known, the later one counts."""
        if is_kept:
            self.kept = rate
            if self.missed <= rate:
                self.missed = math.inf
        else:
            self.missed = rate
            if self.kept >= rate:
                self.kept = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRate:
    """What a search has found.

    Attributes:
        best: the measurement at the greatest rate that keeps the bound; None where none does.
        missed: the least rate that misses it; infinite where none was found.
        measurements: all of them, by rate.
        is_exact: whether both are as near to each other as was asked for. False: the time was over, or the generator
            was the limit.
        is_limited: whether the search ended since the generator, and not the model, has missed the bound.
    """

    bound: LatencyBound
    best: Measurement | None
    missed: float
    measurements: Sequence[Measurement]
    is_exact: bool
    is_limited: bool = False


async def find_rate(
    session: Session,
    bound: LatencyBound,
    ends: Ends,
    *,
    arrivals: Arrivals = Poisson(),  # noqa: B008 (frozen)
    seed: int = 0,
    seconds: float = 120.0,
    precision: float = 0.05,
    progress: Progress | None = None,
) -> FoundRate:
    """Search, for so many seconds at most. Each rate ends as soon as it surely keeps or misses the bound. Raises as
    `Session.measure`."""
    began = trio.current_time()
    ends = replace(ends, bound=bound, percent=bound.percent)
    first = await session.measure(Closed(1), replace(ends, most_seconds=ends.least_seconds), progress=progress)
    search = RateSearch(max(1.0, first.rate.value / 2), precision)
    found: list[Measurement] = []
    is_exact, is_limited = True, False
    while (rate := search.next_rate()) is not None:
        if trio.current_time() - began > seconds:
            is_exact = False
            break
        measurement = await session.measure(Open(rate, arrivals, seed), ends, progress=progress)
        found.append(measurement)
        is_kept = keeps(measurement, rate, bound)
        if measurement.limits and not is_kept:  # that says nothing of the model
            is_exact, is_limited = False, True
            break
        search.judge(rate, is_kept=is_kept)
    best = [each for each in found if isinstance(each.load, Open) and each.load.rate == search.kept]
    return FoundRate(
        bound=bound,
        best=best[-1] if best else None,
        missed=search.missed,
        measurements=sorted(found, key=lambda each: each.load.rate if isinstance(each.load, Open) else 0.0),
        is_exact=is_exact and bool(best),
        is_limited=is_limited,
    )


def keeps(measurement: Measurement, rate: float, bound: LatencyBound) -> bool:
    """Whether a bound is kept at a rate that the model really answers."""
    if measurement.error_share > _MOST_ERROR_SHARE or not measurement.keeps(bound):
        return False
    # Random arrivals are not as many as planned in so short a time.
    noise = 3 * math.sqrt(rate * measurement.seconds) / measurement.seconds if measurement.seconds else 0.0
    return measurement.rate.value >= _LEAST_SHARE * rate - noise
