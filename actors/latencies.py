"""How the durations of a version's requests are spread: histograms, which are on by default, and summaries.

Filled by `statistics`, batch by batch. Durations are in microseconds, but for the time to the first response, which
Triton has in milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from actors.histogram import DURATION_BOUNDS_US, FIRST_RESPONSE_BOUNDS_MS, Histogram, HistogramSnapshot
from actors.sliding_window import SlidingWindow, SummarySnapshot
from repository.model_config import ModelConfig


def _durations() -> Histogram:
    return Histogram(DURATION_BOUNDS_US)


@dataclass(slots=True)
class LatencyHistograms:
    """Of successful requests; the fields are in the metrics' names."""

    request: Histogram = field(default_factory=_durations)
    queue: Histogram = field(default_factory=_durations)
    compute_input: Histogram = field(default_factory=_durations)
    compute_infer: Histogram = field(default_factory=_durations)
    compute_output: Histogram = field(default_factory=_durations)
    first_response: Histogram = field(default_factory=lambda: Histogram(FIRST_RESPONSE_BOUNDS_MS))

    def frozen(self) -> dict[str, HistogramSnapshot]:
        return {each.name: getattr(self, each.name).frozen() for each in fields(self)}


class LatencySummaries:
    """Of successful requests, with the cache's lookups beside them; the fields are in the metrics' names."""

    __slots__ = ("cache_hit", "cache_miss", "compute_infer", "compute_input", "compute_output", "queue", "request")

    def __init__(self, quantiles: Sequence[float]) -> None:
        self.request = SlidingWindow(quantiles)
        self.queue = SlidingWindow(quantiles)
        self.compute_input = SlidingWindow(quantiles)
        self.compute_infer = SlidingWindow(quantiles)
        self.compute_output = SlidingWindow(quantiles)
        self.cache_hit = SlidingWindow(quantiles)
        self.cache_miss = SlidingWindow(quantiles)

    def frozen(self) -> dict[str, SummarySnapshot]:
        return {name: getattr(self, name).frozen() for name in self.__slots__}


def latency_histograms(config: ModelConfig) -> LatencyHistograms:
    """The histograms of a model, with the buckets that its `model_metrics` give."""
    bounds = {
        control.metric_identifier.family: control.histogram_options.buckets
        for control in (config.model_metrics.metric_control if config.model_metrics is not None else ())
        if control.metric_identifier is not None and control.histogram_options is not None
    }
    first_response = bounds.get("nv_inference_first_response_histogram_ms", FIRST_RESPONSE_BOUNDS_MS)
    return LatencyHistograms(first_response=Histogram(first_response))
