"""What has happened between two readings of a version's counters."""

from __future__ import annotations

import math

import numpy as np
import pytest

from actors.console.counters import SERIES, ZERO_WHEN_IDLE, Counters, Delta
from actors.console.quantiles import quantiles
from actors.metrics.statistics import FailureReason, FlushReason, VersionStatistics
from actors.metrics.watched import BOUNDS_SECONDS, WatchedDurations
from backends.interface import BatchTiming


def test_quantiles_are_those_of_the_values_within_a_bucket() -> None:
    values = np.random.default_rng(1).lognormal(-5, 1, 10_000)
    watched = WatchedDurations()
    for value in values.tolist():
        watched.count_replies((0.0,), (value,))
    shares = (0.01, 0.5, 0.99)
    for found, true in zip(
        quantiles(BOUNDS_SECONDS, watched.counts(), shares), np.quantile(values, shares), strict=True
    ):
        assert found == pytest.approx(true, rel=0.13)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [([0, 0, 0], None), ([4, 0, 0], 5.0), ([0, 4, 0], 15.0), ([0, 0, 3], 20.0), ([2, 2, 0], 10.0)],
)
def test_quantiles_by_hand(counts: list[int], expected: float | None) -> None:
    assert quantiles(np.array([10.0, 20.0]), np.array(counts), (0.5,)) == (expected,)


def test_a_second_of_a_version() -> None:
    statistics = VersionStatistics()
    statistics.watch_durations()
    before = Counters.of(statistics)
    statistics.count_execution(BatchTiming(1000, 2000, 3000), 4, batch_size=4)
    statistics.inference_count += 4
    for seconds in (0.001, 0.001, 0.002):
        statistics.count_cache_hit(seconds)
    statistics.count_failure(FailureReason.BACKEND, 0.1)
    statistics.flushes[FlushReason.FULL] += 2
    after = Counters.of(statistics)
    assert after.activity != before.activity
    delta = Delta.between(before, after, 2.0)
    point = dict(zip(SERIES, delta.point(queue=7), strict=True))
    assert (point["rate"], point["failures"], point["batch"], point["queue"]) == (1.5, 0.5, 4.0, 7)
    assert (point["hits"], point["misses"]) == (1.5, 0)
    assert point["flush_full"] == 1.0
    assert point["p50"] is not None
    assert point["p50"] == pytest.approx(1.0, rel=0.13)
    assert point["p99"] is not None
    assert point["p99"] == pytest.approx(2.0, rel=0.13)


def test_a_version_that_was_loaded_anew_counts_from_zero() -> None:
    statistics = VersionStatistics()
    statistics.count_cache_hit(0.001)
    many = Counters.of(statistics, routed=10)
    few = Counters.of(VersionStatistics(), routed=3)
    assert Delta.between(many, few, 1.0).successes == 3


def test_durations_are_counted_finely_while_they_are_watched() -> None:
    """Whatever the metrics have; before and after there are none."""
    statistics = VersionStatistics(histograms=None)
    statistics.count_cache_hit(1.0)
    statistics.watch_durations()
    before = Counters.of(statistics)
    statistics.count_cache_hit(0.003)
    delta = Delta.between(before, Counters.of(statistics), 1.0)
    assert delta.rate == 1.0
    assert delta.latency[0] == pytest.approx(3.0, rel=0.13)
    statistics.unwatch_durations()
    statistics.count_cache_hit(0.003)
    delta = Delta.between(before, Counters.of(statistics), 1.0)
    assert delta.latency == (None, None)
    assert len(delta.point(0)) == len(SERIES) == len(ZERO_WHEN_IDLE)
    assert not any(value is not None and math.isnan(value) for value in delta.point(0))
