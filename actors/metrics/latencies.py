"""Latency distributions of one model version: Prometheus histograms, on by default, and summaries with quantiles.

Owned and filled by `statistics`, batch by batch. Durations are in microseconds, but for the time to the first response,
which Triton has in milliseconds.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from actors.metrics.histogram import (
    DURATION_BOUNDS_US,
    FEW_DURATION_BOUNDS_US,
    FIRST_RESPONSE_BOUNDS_MS,
    Histogram,
    HistogramSnapshot,
)
from actors.metrics.sliding_window import SlidingWindow, SummarySnapshot
from backends.interface import BatchTiming
from repository.model_config import ModelConfig

# Of each kind as many numbers are kept before they are put into their buckets, all at once.
KEPT = 1024


# The histograms by their names here and as metrics, with their bounds.
HISTOGRAMS: Mapping[str, tuple[str, Sequence[float]]] = {
    "request": ("nv_inference_request_duration_histogram_us", DURATION_BOUNDS_US),
    "queue": ("nv_inference_queue_duration_histogram_us", DURATION_BOUNDS_US),
    "compute_input": ("nv_inference_compute_input_duration_histogram_us", DURATION_BOUNDS_US),
    "compute_infer": ("nv_inference_compute_infer_duration_histogram_us", DURATION_BOUNDS_US),
    "compute_output": ("nv_inference_compute_output_duration_histogram_us", DURATION_BOUNDS_US),
    "first_response": ("nv_inference_first_response_histogram_ms", FIRST_RESPONSE_BOUNDS_MS),
}
BATCH_SIZES = "trioton_batch_size"


class HistogramDetail(enum.Enum):
    """Which histograms a model has. FEW: the whole duration with few bounds, and those that `model_metrics` in its
    configuration gives bounds."""

    NONE = "none"
    FEW = "few"
    ALL = "all"


@dataclass(slots=True)
class LatencyHistograms:
    """Histograms of successful requests, None for those that are not asked for.

    An observation is a number appended to a list: finding its bucket costs several times as much, unless done for
    hundreds at once. Containers kept as long would burden the garbage collector; numbers do not.
    """

    request: Histogram | None = None
    queue: Histogram | None = None
    compute_input: Histogram | None = None
    compute_infer: Histogram | None = None
    compute_output: Histogram | None = None
    first_response: Histogram | None = None
    # Seconds of requests with one response.
    _queued: list[float] = field(default_factory=list, init=False)
    _taken: list[float] = field(default_factory=list, init=False)
    # Of each batch: input, infer and output nanoseconds, and how many requests count them as theirs.
    _executions: list[float] = field(default_factory=list, init=False)
    _counts_queued: bool = field(init=False)
    _counts_executions: bool = field(init=False)

    def __post_init__(self) -> None:
        self._counts_queued = self.queue is not None
        computing = (self.compute_input, self.compute_infer, self.compute_output)
        self._counts_executions = any(histogram is not None for histogram in computing)

    def count_replies(self, queued: Sequence[float], taken: Sequence[float]) -> None:
        """Count requests with one response: the seconds that each has waited in the queue, and has taken in all."""
        if self._counts_queued:
            self._queued.extend(queued)
        self._taken.extend(taken)
        if len(self._taken) >= KEPT:
            self._sort_replies()

    def count_execution(self, timing: BatchTiming, requests: int) -> None:
        """Count the durations of a batch, once for each of so many requests."""
        if not self._counts_executions:
            return
        self._executions.extend((timing.compute_input_ns, timing.compute_infer_ns, timing.compute_output_ns, requests))
        if len(self._executions) >= KEPT:
            self._sort_executions()

    def count_queued(self, seconds: float) -> None:
        if self.queue is not None:
            self.queue.observe(seconds * 1e6)

    def count_stream(self, seconds: float, first_response: float | None) -> None:
        """Count a request with any number of responses: the seconds to the first, if there was one, and in all."""
        if self.request is not None:
            self.request.observe(seconds * 1e6)
        if first_response is not None and self.first_response is not None:
            self.first_response.observe(first_response * 1e3)

    def frozen(self) -> dict[str, HistogramSnapshot]:
        self._sort_replies()
        self._sort_executions()
        found: dict[str, Histogram | None] = {name: getattr(self, name) for name in HISTOGRAMS}
        return {name: histogram.frozen() for name, histogram in found.items() if histogram is not None}

    def _sort_replies(self) -> None:
        if not self._taken:
            return
        _observe(self.queue, _taken_from(self._queued) * 1e6)
        taken = _taken_from(self._taken)
        _observe(self.request, taken * 1e6)
        _observe(self.first_response, taken * 1e3)

    def _sort_executions(self) -> None:
        if not self._executions:
            return
        computed_input, computed, computed_output, requests = _taken_from(self._executions).reshape(-1, 4).T
        _observe(self.compute_input, computed_input / 1e3, requests)
        _observe(self.compute_infer, computed / 1e3, requests)
        _observe(self.compute_output, computed_output / 1e3, requests)


def _observe(
    histogram: Histogram | None, values: NDArray[np.float64], counts: NDArray[np.float64] | None = None
) -> None:
    if histogram is not None:
        histogram.observe_all(values, counts)


class LatencySummaries:
    """Summaries of successful requests, with the cache's lookups beside them; the windows are in the metrics' names."""

    __slots__ = ("cache_hit", "cache_miss", "compute_infer", "compute_input", "compute_output", "queue", "request")

    def __init__(self, quantiles: Sequence[float]) -> None:
        self.request = SlidingWindow(quantiles)
        self.queue = SlidingWindow(quantiles)
        self.compute_input = SlidingWindow(quantiles)
        self.compute_infer = SlidingWindow(quantiles)
        self.compute_output = SlidingWindow(quantiles)
        self.cache_hit = SlidingWindow(quantiles)
        self.cache_miss = SlidingWindow(quantiles)

    def count_replies(self, queued: Sequence[float], taken: Sequence[float]) -> None:
        for seconds in queued:
            self.queue.observe(seconds * 1e6)
        for seconds in taken:
            self.request.observe(seconds * 1e6)

    def count_execution(self, timing: BatchTiming, requests: int) -> None:
        self.compute_input.observe(timing.compute_input_ns / 1e3, requests)
        self.compute_infer.observe(timing.compute_infer_ns / 1e3, requests)
        self.compute_output.observe(timing.compute_output_ns / 1e3, requests)

    def count_queued(self, seconds: float) -> None:
        self.queue.observe(seconds * 1e6)

    def count_stream(self, seconds: float, first_response: float | None) -> None:
        self.request.observe(seconds * 1e6)

    def frozen(self) -> dict[str, SummarySnapshot]:
        return {name: getattr(self, name).frozen() for name in self.__slots__}


def _taken_from(numbers: list[float]) -> NDArray[np.float64]:
    taken = np.fromiter(numbers, np.float64, len(numbers))
    numbers.clear()
    return taken


def all_histograms() -> LatencyHistograms:
    return LatencyHistograms(**{name: Histogram(bounds) for name, (_, bounds) in HISTOGRAMS.items()})


def latency_histograms(config: ModelConfig, detail: HistogramDetail = HistogramDetail.ALL) -> LatencyHistograms | None:
    """The histograms of a model, with the bounds that its `model_metrics` give, if it is to have any."""
    if detail is HistogramDetail.NONE:
        return None
    given = _given_bounds(config)
    bounds = {name: bounds for name, (_, bounds) in HISTOGRAMS.items()}
    if detail is HistogramDetail.FEW:
        bounds = {"request": FEW_DURATION_BOUNDS_US}
    bounds |= {name: given[family] for name, (family, _) in HISTOGRAMS.items() if family in given}
    return LatencyHistograms(**{name: Histogram(of_one) for name, of_one in bounds.items()})


def batch_size_bounds(config: ModelConfig, detail: HistogramDetail) -> Sequence[float]:
    """Those of the histogram of batch sizes, where it is to be shown: of `model_metrics`, or powers of two below the
    largest size."""
    given = _given_bounds(config).get(BATCH_SIZES)
    if detail is HistogramDetail.NONE or (given is None and detail is HistogramDetail.FEW):
        return ()
    return given or [float(2**power) for power in range((config.max_batch_size - 1).bit_length())]


def _given_bounds(config: ModelConfig) -> Mapping[str, Sequence[float]]:
    """By the names of metrics, as the configuration gives them."""
    return {
        control.metric_identifier.family: control.histogram_options.buckets
        for control in (config.model_metrics.metric_control if config.model_metrics is not None else ())
        if control.metric_identifier is not None and control.histogram_options is not None
    }
