"""Where a curve crosses its bound."""

from __future__ import annotations

import math

import pytest

from trioton.analyze.search.candidates import Measured, Outcome, Trial
from trioton.analyze.search.curves import Crossing, crossing, keeps, points, rising


def measured(rate: float, latency: float | None, achieved: float | None = None, **values: float) -> Measured:
    outcome = Outcome(achieved=rate if achieved is None else achieved, latency=latency, **values)  # type: ignore[arg-type]
    return Measured(Trial("", rate, 1.0, "s"), outcome)


def test_between_the_last_that_keeps_it_and_the_next() -> None:
    found = crossing([measured(100, 0.5), measured(200, 2.0), measured(50, 0.4)], 1.0)
    assert found == Crossing(found.rate)
    assert found.rate == pytest.approx(100 * math.sqrt(2))


def test_where_all_or_none_keep_it() -> None:
    assert crossing([measured(100, 0.5)], 1.0) == Crossing(100, is_above=True)
    found = crossing([measured(100, 4.0)], 1.0)
    assert found.is_below
    assert found.rate < 100
    assert crossing([], 1.0).is_below


def test_overload_and_errors_miss_a_bound_whatever_the_latency() -> None:
    assert keeps(measured(100, 0.5).outcome, 100, 1.0)
    assert not keeps(measured(100, 0.5, achieved=80).outcome, 100, 1.0)
    assert not keeps(measured(100, 0.5, error_share=0.02).outcome, 100, 1.0)
    assert not keeps(measured(100, None).outcome, 100, 1.0)
    assert not keeps(Outcome(failure="does not load"), 100, 1.0)


def test_noise_is_joined() -> None:
    curve = rising(points([measured(1, 0.1), measured(2, 1.6), measured(3, 0.4), measured(4, 3.0)], 1.0))
    assert [point.level for point in curve] == pytest.approx([0.1, 0.8, 0.8, 3.0])


def test_longer_trials_count_more() -> None:
    long = Measured(Trial("", 1.0, 3.0, "s"), Outcome(achieved=1.0, latency=1.0))
    [point] = points([measured(1, 16.0), long], 8.0)
    assert point.level == pytest.approx(16 ** (1 / 4) / 8)
