"""Confidence intervals: how often they hold the truth, also where neighbours depend on each other."""

from __future__ import annotations

import math
import random

import pytest

from trioton.perf import confidence
from trioton.perf.figures import Figures


def a_slice(values: list[float], seconds: float = 0.1) -> Figures:
    made = Figures(seconds=seconds, succeeded=len(values))
    made.latency.record_all([int(value) for value in values])
    return made


@pytest.mark.parametrize(("degrees", "expected"), [(4, 2.776), (9, 2.262), (19, 2.093), (100, 1.984)])
def test_students_factor(degrees: int, expected: float) -> None:
    assert confidence.student(degrees) == pytest.approx(expected, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("percent", [50.0, 95.0, 99.0])
def test_intervals_of_independent_values_hold_the_truth(percent: float) -> None:
    """95 % of the time; of 200 intervals at least 180 and not all."""
    truth = -math.log(1 - percent / 100) * 1e6
    drawn = random.Random(3)
    hits = 0
    for _ in range(200):
        slices = [a_slice([drawn.expovariate(1e-6) for _ in range(60)]) for _ in range(100)]
        found = confidence.percentile(slices, percent, lambda figures: figures.latency)
        hits += abs(found.value - truth) <= found.margin
    assert 180 <= hits <= 200


@pytest.mark.slow
def test_intervals_of_dependent_values_hold_the_truth() -> None:
    """A level that wanders over some slices: taken for independent, it would be far surer than it is."""
    drawn, hits, naive = random.Random(5), 0, 0
    for _ in range(200):
        level, slices = 0.0, []
        for _ in range(400):
            level = 0.8 * level + drawn.gauss(0, 60_000)
            slices.append(a_slice([1e6 + level + drawn.gauss(0, 10_000) for _ in range(20)]))
        found = confidence.mean(slices, lambda figures: figures.latency)
        hits += abs(found.value - 1e6) <= found.margin
        naive += abs(found.value - 1e6) <= 1.96 * 100_000 / math.sqrt(8000)
    assert hits >= 170
    assert naive < 100


def test_the_rate_has_the_margin_of_its_batches() -> None:
    drawn = random.Random(1)
    slices = [a_slice([1.0] * round(drawn.gauss(100, 10))) for _ in range(100)]
    found = confidence.rate(slices)
    assert found.value == pytest.approx(1000, rel=0.02)
    assert 5 < found.margin < 40


def test_too_little_says_nothing() -> None:
    assert confidence.rate([a_slice([1.0])]).margin == math.inf
    assert confidence.percentile([a_slice([1.0])] * 50, 99.9, lambda figures: figures.latency).margin == math.inf
    assert confidence.percentile([], 50, lambda figures: figures.latency).margin == math.inf


def test_batches_hold_the_latest_slices_evenly() -> None:
    slices = [Figures(seconds=1, succeeded=index) for index in range(47)]
    found = confidence.batches(slices)
    assert len(found) == 20
    assert {each.seconds for each in found} == {2}
    assert sum(each.succeeded for each in found) == sum(range(7, 47))
