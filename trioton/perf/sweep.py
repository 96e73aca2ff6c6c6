"""Sweeps: measurements of several loads, one after the other; without any given, closed loops up to the knee."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import trio

from trioton.perf.load import Closed, Load
from trioton.perf.measurement import Ends, Measurement
from trioton.perf.session import Progress, Session

# A level that adds less than this to the best rate gains nothing; two in a row end a sweep.
_LEAST_GAIN = 0.05
_PATIENCE = 2
# Of the best rate, what the load at the knee reaches.
_KNEE = 0.95
_MOST_CONCURRENCY = 4096
# Levels that a sweep has time for, at the least.
_USUAL_LEVELS = 8


def knee(measurements: Sequence[Measurement]) -> Measurement | None:
    """The first load, in the order of the loads, whose rate is nearly the best: more load only waits longer. None where
    nothing has succeeded."""
    best = max((each.rate.value for each in measurements), default=0.0)
    if not best:
        return None
    return next(each for each in measurements if each.rate.value >= _KNEE * best)


def has_passed_knee(measurements: Sequence[Measurement]) -> bool:
    """Whether the last loads have gained nothing over those before, or nothing succeeds."""
    if not measurements[-1].figures.succeeded:
        return True
    if len(measurements) <= _PATIENCE:
        return False
    before = max(each.rate.value for each in measurements[:-_PATIENCE])
    return max(each.rate.value for each in measurements[-_PATIENCE:]) < (1 + _LEAST_GAIN) * before


def level_ends(ends: Ends, seconds: float) -> Ends:
    """For each level of a sweep that is to take so long in all."""
    most = max(1.0, seconds / _USUAL_LEVELS - ends.warmup_seconds)
    return replace(ends, most_seconds=min(ends.most_seconds, most), least_seconds=min(ends.least_seconds, most))


async def sweep_to_knee(
    session: Session, ends: Ends, seconds: float = 60.0, progress: Progress | None = None
) -> list[Measurement]:
    """Closed loops of 1, 2, 4 … requests at a time, until more load gains nothing or the time is over. Raises as
    `Session.measure`."""
    began, concurrency = trio.current_time(), 1
    level = level_ends(ends, seconds)
    found: list[Measurement] = []
    while concurrency <= _MOST_CONCURRENCY:
        found.append(await session.measure(Closed(concurrency), level, progress=progress))
        left = seconds - (trio.current_time() - began)
        if has_passed_knee(found) or left < level.warmup_seconds + level.least_seconds:
            break
        concurrency *= 2
    return found


async def measure_all(
    session: Session, loads: Sequence[Load], ends: Ends, progress: Progress | None = None
) -> list[Measurement]:
    """Each load that is given. Raises as `Session.measure`."""
    return [await session.measure(load, ends, progress=progress) for load in loads]
