"""Sweeps and searches against models whose curves are known."""

from __future__ import annotations

import math
from typing import Any

import pytest
from trio.testing import MockClock

from trioton.perf.bounds import LatencyBound
from trioton.perf.confidence import Estimate
from trioton.perf.figures import Figures
from trioton.perf.find_rate import RateSearch, find_rate
from trioton.perf.load import Closed, Load, Open
from trioton.perf.measurement import Ends, Measurement, measured
from trioton.perf.sweep import has_passed_knee, knee, sweep_to_knee


def a_slice(rate: float, latency: float, failed: int = 0) -> Figures:
    count = round(rate)
    made = Figures(seconds=1.0, sent=count, succeeded=count, errors={"refused": failed} if failed else {})
    made.latency.record_all([round(latency * 1e9)] * count)
    return made


class Model:
    """In place of a session: one server of `capacity` requests a second, whose latency grows as a queue's does."""

    def __init__(self, capacity: float, limits: tuple[str, ...] = ()) -> None:
        self.capacity, self.limits = capacity, limits
        self.loads: list[Load] = []

    async def measure(self, load: Load, ends: Ends, *, progress: Any = None) -> Measurement:
        self.loads.append(load)
        service = 1 / self.capacity
        if isinstance(load, Closed):
            rate = self.capacity * load.concurrency / (load.concurrency + 3)
            latency = load.concurrency / rate
        else:
            rate = min(load.rate, self.capacity)
            latency = service / (1 - load.rate / self.capacity) if load.rate < self.capacity else 100.0
        return measured(load, [a_slice(rate, latency)] * 20, ends, limits=self.limits)


@pytest.mark.parametrize("capacity", [50.0, 700.0, 20_000.0])
async def test_the_greatest_rate_that_keeps_a_bound_is_found(autojump_clock: MockClock, capacity: float) -> None:
    """Latency s / (1 - r/c) is at most b up to r = c (1 - s/b)."""
    bound = LatencyBound(99, 10 / capacity)
    found = await find_rate(Model(capacity), bound, Ends())  # type: ignore[arg-type]
    assert found.best is not None
    assert isinstance(found.best.load, Open)
    assert found.best.load.rate == pytest.approx(capacity * 0.9, rel=0.05)
    assert found.missed > capacity * 0.9
    assert found.is_exact


async def test_nothing_keeps_a_bound_below_the_service_time(autojump_clock: MockClock) -> None:
    found = await find_rate(Model(100.0), LatencyBound(99, 0.001), Ends())  # type: ignore[arg-type]
    assert (found.best, found.is_exact) == (None, False)


async def test_a_search_ends_where_the_generator_is_the_limit(autojump_clock: MockClock) -> None:
    model = Model(100.0, limits=("late",))
    found = await find_rate(model, LatencyBound(99, 0.1), Ends())  # type: ignore[arg-type]
    assert found.is_limited
    assert not found.is_exact
    assert found.best is not None, "what was kept in spite of that is kept"


def test_a_search_recovers_from_a_wrong_verdict() -> None:
    """The first verdict at 100 was noise: all rates up to 90 are kept."""
    search = RateSearch(100.0, 0.05)
    search.judge(100.0, is_kept=True)
    for _ in range(30):
        rate = search.next_rate()
        if rate is None:
            break
        search.judge(rate, is_kept=rate <= 90)
    assert search.kept <= search.missed
    assert math.isfinite(search.missed)


async def test_a_sweep_ends_behind_the_knee(autojump_clock: MockClock) -> None:
    """c / (c + 3) of the capacity with c at a time: 128 and 256 add less than 5 % to 64."""
    model = Model(1000.0)
    found = await sweep_to_knee(model, Ends())  # type: ignore[arg-type]
    assert [load.concurrency for load in model.loads if isinstance(load, Closed)] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    best = knee(found)
    assert best is not None
    assert best.load == Closed(64)


def test_there_is_no_knee_where_nothing_succeeds() -> None:
    nothing = measured(Closed(1), [Figures(seconds=1.0, errors={"refused": 5})], Ends())
    assert knee([nothing]) is None
    assert has_passed_knee([nothing])


def test_margins_are_in_the_unit_of_the_figure() -> None:
    assert str(Estimate(2.0, 0.5)) == "2 ±0.5"
