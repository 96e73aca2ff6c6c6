"""Histograms of durations."""

from __future__ import annotations

from actors.metrics.histogram import FIRST_RESPONSE_BOUNDS_MS, Histogram, HistogramSnapshot
from actors.metrics.latencies import latency_histograms
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
    assert latency_histograms(ModelConfig(model_metrics=metrics)).first_response.frozen().bounds == (1.0, 2.0)
    assert latency_histograms(ModelConfig()).first_response.frozen().bounds == FIRST_RESPONSE_BOUNDS_MS
