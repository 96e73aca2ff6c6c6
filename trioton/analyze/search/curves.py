"""Curves of latency by rate, and where they cross a bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trioton.analyze.search.candidates import Measured, Outcome

# Less of what was offered means that requests pile up, whatever the latency of those that were answered.
LEAST_ACHIEVED = 0.95
MOST_ERRORS = 0.01
# How far beyond the bound an overload counts, whose latency is a matter of how long it lasts.
_OVERLOAD = 4.0


@dataclass(frozen=True, slots=True)
class Crossing:
    """The greatest rate that keeps a bound. `is_below`: no rate that was offered does, it is below; `is_above`: all do,
    it is above."""

    rate: float
    is_below: bool = False
    is_above: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """A rate, and the latency beside the bound: 1 where it is just kept."""

    rate: float
    level: float
    weight: float


def level(outcome: Outcome, rate: float, bound: float) -> float:
    """The latency beside the bound; above 1 for overload and errors in any case."""
    if outcome.failure or outcome.latency is None:
        return _OVERLOAD
    found = min(max(outcome.latency / bound, 1e-3), _OVERLOAD)
    if outcome.achieved < LEAST_ACHIEVED * rate or outcome.error_share > MOST_ERRORS:
        return max(found, _OVERLOAD / 2)
    return found


def keeps(outcome: Outcome, rate: float, bound: float) -> bool:
    return level(outcome, rate, bound) <= 1


def points(measured: Sequence[Measured], bound: float) -> list[Point]:
    """One for each rate: the geometric mean of all that was measured there, longer trials counting more."""
    by_rate: dict[float, list[tuple[float, float]]] = {}
    for each in measured:
        found = level(each.outcome, each.trial.rate, bound)
        by_rate.setdefault(each.trial.rate, []).append((math.log(found), each.trial.seconds))
    made = []
    for rate in sorted(by_rate):
        weight = sum(seconds for _, seconds in by_rate[rate])
        made.append(Point(rate, math.exp(sum(log * s for log, s in by_rate[rate]) / weight), weight))
    return made


def rising(curve: Sequence[Point]) -> list[Point]:
    """The closest curve that never falls: neighbours that do are joined to their mean. What falls is noise, as more
    load does not make a model quicker where it is near its limit."""
    blocks: list[tuple[list[Point], float, float]] = []
    for point in curve:
        members, log, weight = [point], math.log(point.level), point.weight
        while blocks and blocks[-1][1] > log:
            before, before_log, before_weight = blocks.pop()
            log = (before_log * before_weight + log * weight) / (before_weight + weight)
            members, weight = [*before, *members], before_weight + weight
        blocks.append((members, log, weight))
    return [Point(each.rate, math.exp(log), each.weight) for members, log, _ in blocks for each in members]


def crossing(measured: Sequence[Measured], bound: float) -> Crossing:
    """Where the curve crosses the bound, between the last rate that keeps it and the next that does not."""
    curve = rising(points(measured, bound))
    if not curve:
        return Crossing(0.0, is_below=True)
    kept = [point for point in curve if point.level <= 1]
    if not kept:
        return Crossing(curve[0].rate / math.sqrt(curve[0].level), is_below=True)
    if len(kept) == len(curve):
        return Crossing(kept[-1].rate, is_above=True)
    low, high = kept[-1], curve[len(kept)]
    share = -math.log(low.level) / (math.log(high.level) - math.log(low.level))
    return Crossing(low.rate * (high.rate / low.rate) ** share)
