"""Histograms of durations."""

from __future__ import annotations

from actors.metrics.histogram import FEW_DURATION_BOUNDS_US, FIRST_RESPONSE_BOUNDS_MS, Histogram, HistogramSnapshot
from actors.metrics.latencies import HISTOGRAMS, HistogramDetail, latency_histograms
from backends.interface import BatchTiming
from repository.model_config import HistogramOptions, MetricControl, MetricIdentifier, ModelConfig, ModelMetrics


def test_values_are_counted_up_to_their_bound_with_the_bound_itself() -> None:
    histogram = Histogram((10.0, 100.0))
    for value, count in [(10.0, 1), (10.5, 2), (1000.0, 1), (0.0, 1)]:
        histogram.observe(value, count)
    assert histogram.frozen() == HistogramSnapshot((10.0, 100.0), (2, 4, 5), 1031.0)


def test_a_model_may_give_its_own_buckets() -> None:
    metrics = ModelMetrics(
        metric_control=(
            MetricControl(
                metric_identifier=MetricIdentifier(family="nv_inference_first_response_histogram_ms"),
                histogram_options=HistogramOptions(buckets=(1.0, 2.0)),
            ),
        )
    )
    config = ModelConfig(model_metrics=metrics)
    assert bounds(config, HistogramDetail.ALL)["first_response"] == (1.0, 2.0)
    assert bounds(ModelConfig(), HistogramDetail.ALL)["first_response"] == FIRST_RESPONSE_BOUNDS_MS


def bounds(config: ModelConfig, detail: HistogramDetail) -> dict[str, tuple[float, ...]]:
    histograms = latency_histograms(config, detail)
    assert histograms is not None
    return {name: snapshot.bounds for name, snapshot in histograms.frozen().items()}


def test_by_default_there_is_one_and_those_that_are_asked_for() -> None:
    assert bounds(ModelConfig(), HistogramDetail.FEW) == {"request": FEW_DURATION_BOUNDS_US}
    controls = [
        MetricControl(MetricIdentifier(family), HistogramOptions((1.0, 2.0)))
        for family in (
            "nv_inference_request_duration_histogram_us",
            "nv_inference_queue_duration_histogram_us",
            "other",
        )
    ]
    config = ModelConfig(model_metrics=ModelMetrics(metric_control=tuple(controls)))
    assert bounds(config, HistogramDetail.FEW) == {"request": (1.0, 2.0), "queue": (1.0, 2.0)}
    assert bounds(ModelConfig(), HistogramDetail.ALL) == {name: tuple(each) for name, (_, each) in HISTOGRAMS.items()}
    assert latency_histograms(config, HistogramDetail.NONE) is None


def test_what_is_not_shown_is_not_counted() -> None:
    histograms = latency_histograms(ModelConfig(), HistogramDetail.FEW)
    assert histograms is not None
    histograms.count_execution(BatchTiming(1, 2, 3), 4)
    histograms.count_queued(1.0)
    histograms.count_stream(0.002, 0.001)
    histograms.count_replies((0.0,), (0.0005,))
    assert histograms.frozen() == {"request": HistogramSnapshot(FEW_DURATION_BOUNDS_US, (2, 2, 2, 2), 2500.0)}
