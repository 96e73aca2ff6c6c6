"""The server's side: differences of statistics and of histograms."""

from __future__ import annotations

import math

import pytest

from protocol.core import InferBatchStatistics, InferStatistics, ModelStatistics, StatisticDuration
from trioton.perf.caller import ModelDescription
from trioton.perf.server_side import Snapshot, composing, cumulative, server_figures


def statistics(count: int, batches: dict[int, int], version: str = "1") -> ModelStatistics:
    def took(milliseconds: int) -> StatisticDuration:
        return StatisticDuration(count, count * milliseconds * 1_000_000)

    zero = StatisticDuration()
    return ModelStatistics(
        "m",
        version,
        inference_count=sum(size * number for size, number in batches.items()),
        execution_count=sum(batches.values()),
        inference_stats=InferStatistics(
            success=took(10), queue=took(4), compute_input=took(1), compute_infer=took(3), compute_output=took(2)
        ),
        batch_stats=tuple(
            InferBatchStatistics(size, zero, StatisticDuration(number, 0), zero) for size, number in batches.items()
        ),
    )


def metrics(*counts: int, version: str = "1") -> str:
    bounds = ("1000.0", "10000.0", "100000.0", "+Inf")
    return "\n".join(
        f'nv_inference_request_duration_histogram_us_bucket{{le="{bound}",model="m",version="{version}"}} {count}'
        for bound, count in zip(bounds, counts, strict=True)
    )


def test_what_has_been_counted_between() -> None:
    before = Snapshot({"m": [statistics(100, {1: 100})]}, metrics(50, 100, 100, 100))
    after = Snapshot({"m": [statistics(300, {1: 110, 4: 50})]}, metrics(150, 299, 300, 300))
    found = server_figures(before, after, "m")
    assert found is not None
    assert (found.succeeded, found.inferences, found.executions) == (200, 210, 60)
    assert found.batch_sizes == {1: 10, 4: 50}
    assert found.mean_batch == 3.5
    assert (found.request, found.queue, found.compute_infer) == pytest.approx((0.010, 0.004, 0.003))
    assert found.percentiles[50.0] == pytest.approx((0.0, 0.001))
    assert found.percentiles[99.0] == pytest.approx((0.001, 0.01))


def test_the_last_bucket_has_no_end() -> None:
    found = server_figures(Snapshot({"m": []}), Snapshot({"m": []}, metrics(0, 0, 0, 5)), "m")
    assert found is not None
    assert found.percentiles[99.0] == pytest.approx((0.1, math.inf))


def test_versions_are_added_up() -> None:
    text = metrics(1, 2, 3, 4) + "\n" + metrics(10, 20, 30, 40, version="2")
    assert list(cumulative(text, "nv_inference_request_duration_histogram_us", "m").values()) == [11, 22, 33, 44]
    assert cumulative(text, "nv_inference_request_duration_histogram_us", "other") == {}


def test_a_version_that_is_gone_takes_nothing_below_zero() -> None:
    before = Snapshot({"m": [statistics(100, {1: 100}), statistics(50, {2: 25}, "2")]})
    found = server_figures(before, Snapshot({"m": [statistics(120, {1: 120})]}), "m")
    assert found is not None
    assert (found.succeeded, found.inferences, found.queue) == (0, 0, 0.0)


def test_nothing_is_known_without_both() -> None:
    assert server_figures(None, Snapshot({}), "m") is None
    assert server_figures(Snapshot({}), None, "m") is None


def test_an_ensemble_has_the_models_of_its_steps() -> None:
    steps = [{"model_name": "a"}, {"model_name": "b"}, {"model_name": "a"}]
    assert composing(ModelDescription("e", config={"ensemble_scheduling": {"step": steps}})) == ["a", "b"]
    assert composing(ModelDescription("m", config={"ensemble_scheduling": None})) == []
