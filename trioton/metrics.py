"""The Prometheus metrics of a server, collected on each scrape from the actors and the machine.

Names, labels and help texts are those of Triton's metrics extension (Triton, "Metrics"). Each server has a registry of
its own. `protocol.http.metrics` serves what `Metrics.render` gives.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from actors.lifecycle.residence import ResidenceSnapshot
from actors.metrics.custom import FamilyValues
from actors.metrics.histogram import HistogramSnapshot
from actors.metrics.statistics import FailureReason, VersionSnapshot
from backends.devices.devices import Devices
from protocol.failures import CallbackFailures
from protocol.limits.counter import LimitCounter
from trioton.custom_exposition import CustomExposition
from trioton.exposition import render_text
from trioton.gpus import Gpus
from trioton.machine import Machine
from trioton.machine_metrics import CpuCollector, GpuCollector, PinnedMemoryCollector
from trioton.residence_metrics import ResidenceCollector

_NOT_IN_A_LABEL = re.compile(r"[^a-zA-Z0-9_]")
_FAILURES = "nv_inference_request_failure"
_FLUSHES = "trioton_batch_flush_total"


@dataclass(frozen=True, slots=True)
class ModelMetric:
    """A metric with one value per model version."""

    name: str
    kind: str
    help: str
    value: Callable[[VersionSnapshot], float]


# Durations are kept in nanoseconds and shown in whole microseconds.
MODEL_METRICS: tuple[ModelMetric, ...] = (
    ModelMetric(
        "nv_inference_request_success",
        "counter",
        "Number of successful inference requests, all batch sizes",
        lambda s: s.statistics.inference_stats.success.count,
    ),
    ModelMetric(
        "nv_inference_count",
        "counter",
        "Number of inferences performed (does not include cached requests)",
        lambda s: s.statistics.inference_count,
    ),
    ModelMetric(
        "nv_inference_exec_count",
        "counter",
        "Number of model executions performed (does not include cached requests)",
        lambda s: s.statistics.execution_count,
    ),
    ModelMetric(
        "nv_inference_request_duration_us",
        "counter",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda s: s.statistics.inference_stats.success.ns // 1000,
    ),
    ModelMetric(
        "nv_inference_queue_duration_us",
        "counter",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        lambda s: s.statistics.inference_stats.queue.ns // 1000,
    ),
    ModelMetric(
        "nv_inference_compute_input_duration_us",
        "counter",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda s: s.statistics.inference_stats.compute_input.ns // 1000,
    ),
    ModelMetric(
        "nv_inference_compute_infer_duration_us",
        "counter",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda s: s.statistics.inference_stats.compute_infer.ns // 1000,
    ),
    ModelMetric(
        "nv_inference_compute_output_duration_us",
        "counter",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        lambda s: s.statistics.inference_stats.compute_output.ns // 1000,
    ),
    ModelMetric(
        "nv_inference_pending_request_count",
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model.",
        lambda s: s.pending_requests,
    ),
    ModelMetric("nv_model_load_duration_secs", "gauge", "Model load time in seconds", lambda s: s.load_seconds),
)


# Shown only for models that use the response cache.
CACHE_METRICS: tuple[ModelMetric, ...] = (
    ModelMetric(
        "nv_cache_num_hits_per_model",
        "counter",
        "Number of cache hits per model",
        lambda s: s.statistics.inference_stats.cache_hit.count,
    ),
    ModelMetric(
        "nv_cache_num_misses_per_model",
        "counter",
        "Number of cache misses per model",
        lambda s: s.statistics.inference_stats.cache_miss.count,
    ),
    ModelMetric(
        "nv_cache_hit_duration_per_model",
        "counter",
        "Total cache hit duration per model, in microseconds",
        lambda s: s.statistics.inference_stats.cache_hit.ns // 1000,
    ),
    ModelMetric(
        "nv_cache_miss_duration_per_model",
        "counter",
        "Total cache miss duration per model, in microseconds",
        lambda s: s.statistics.inference_stats.cache_miss.ns // 1000,
    ),
)


# Histograms by the names that the snapshots give them.
HISTOGRAMS: tuple[tuple[str, str, str], ...] = (
    ("request", "nv_inference_request_duration_histogram_us", "Inference request duration in microseconds"),
    ("queue", "nv_inference_queue_duration_histogram_us", "Inference queuing duration in microseconds"),
    ("compute_input", "nv_inference_compute_input_duration_histogram_us", "Compute input duration in microseconds"),
    ("compute_infer", "nv_inference_compute_infer_duration_histogram_us", "Compute inference duration in microseconds"),
    ("compute_output", "nv_inference_compute_output_duration_histogram_us", "Compute output duration in microseconds"),
    (
        "first_response",
        "nv_inference_first_response_histogram_ms",
        "Duration from request to first response in milliseconds",
    ),
)


# Summaries by the names that the snapshots give them.
SUMMARIES: tuple[tuple[str, str, str], ...] = (
    (
        "request",
        "nv_inference_request_summary_us",
        "Summary of inference request duration in microseconds (includes cached requests)",
    ),
    (
        "queue",
        "nv_inference_queue_summary_us",
        "Summary of inference queuing duration in microseconds (includes cached requests)",
    ),
    (
        "compute_input",
        "nv_inference_compute_input_summary_us",
        "Summary of compute input duration in microseconds (does not include cached requests)",
    ),
    (
        "compute_infer",
        "nv_inference_compute_infer_summary_us",
        "Summary of compute inference duration in microseconds (does not include cached requests)",
    ),
    (
        "compute_output",
        "nv_inference_compute_output_summary_us",
        "Summary of inference compute output duration in microseconds (does not include cached requests)",
    ),
    ("cache_hit", "nv_cache_hit_summary_per_model", "Summary of cache hit duration per model, in microseconds"),
    ("cache_miss", "nv_cache_miss_summary_per_model", "Summary of cache miss duration per model, in microseconds"),
)
# As in Triton, a model with the cache on has no summary of the whole duration, and only such a one has the cache's.
_NOT_CACHED = ("request",)
_ONLY_CACHED = ("cache_hit", "cache_miss")


@dataclass(frozen=True, slots=True)
class ModelCollector(Collector):
    """The metrics of every loaded model version. `has_counters` false leaves out Triton's group of counters."""

    snapshots: Callable[[], Sequence[VersionSnapshot]]
    has_counters: bool = True
    gpus: Gpus | None = None

    def collect(self) -> Iterator[Metric]:
        labelled = [(self._labels(snapshot), snapshot) for snapshot in self.snapshots()]
        yield from self._histograms(labelled)
        yield from self._summaries(labelled)
        yield from self._flushes(labelled)
        for row in MODEL_METRICS:
            if row.kind == "counter" and not self.has_counters:
                continue
            metric = Metric(row.name, row.help, row.kind)
            for labels, snapshot in labelled:
                metric.add_sample(row.name, labels, row.value(snapshot))
            yield metric
        routed = Metric(
            "trioton_split_requests_total", "Number of requests that a traffic split has sent to its targets", "counter"
        )
        for labels, snapshot in labelled:
            for target, version, role, count in snapshot.routed:
                routed.add_sample(
                    routed.name, {**labels, "target": target, "target_version": version, "role": role}, count
                )
        if routed.samples:
            yield routed
        cached = [(labels, snapshot) for labels, snapshot in labelled if snapshot.has_cache]
        for row in CACHE_METRICS if cached else ():
            metric = Metric(row.name, row.help, row.kind)
            for labels, snapshot in cached:
                metric.add_sample(row.name, labels, row.value(snapshot))
            yield metric
        if not self.has_counters:
            return
        failures = Metric(_FAILURES, "Number of failed inference requests, all batch sizes", "counter")
        for labels, snapshot in labelled:
            for reason in FailureReason:
                failures.add_sample(
                    _FAILURES, {**labels, "reason": reason.value}, snapshot.failures.get(reason.value, 0)
                )
        yield failures

    def _summaries(self, labelled: Sequence[tuple[dict[str, str], VersionSnapshot]]) -> Iterator[Metric]:
        for key, name, help_text in SUMMARIES:
            metric = Metric(name, help_text, "summary")
            for labels, snapshot in labelled:
                summary = snapshot.summaries.get(key)
                if summary is None or key in (_NOT_CACHED if snapshot.has_cache else _ONLY_CACHED):
                    continue
                for quantile, value in summary.quantiles:
                    shown = math.nan if value is None else value
                    metric.add_sample(name, {**labels, "quantile": repr(quantile)}, shown)
                metric.add_sample(f"{name}_sum", labels, summary.total)
                metric.add_sample(f"{name}_count", labels, summary.count)
            if metric.samples:
                yield metric

    def _labels(self, snapshot: VersionSnapshot) -> dict[str, str]:
        tags = {f"_{_NOT_IN_A_LABEL.sub('_', tag)}": value for tag, value in snapshot.metric_tags.items()}
        labels = {**tags, "model": snapshot.model, "version": str(snapshot.version)}
        if snapshot.namespace:
            labels["namespace"] = snapshot.namespace
        uuid = None if self.gpus is None or snapshot.gpu is None else self.gpus.uuid(snapshot.gpu)
        return labels if uuid is None else {**labels, "gpu_uuid": uuid}

    def _flushes(self, labelled: Sequence[tuple[dict[str, str], VersionSnapshot]]) -> Iterator[Metric]:
        metric = Metric(_FLUSHES, "Number of batches that a dynamic batcher has sent, by why they went", "counter")
        for labels, snapshot in labelled:
            for reason, count in snapshot.flushes.items():
                metric.add_sample(_FLUSHES, {**labels, "reason": reason}, count)
        if metric.samples:
            yield metric

    def _histograms(self, labelled: Sequence[tuple[dict[str, str], VersionSnapshot]]) -> Iterator[Metric]:
        for key, name, help_text in HISTOGRAMS:
            metric = Metric(name, help_text, "histogram")
            for labels, snapshot in labelled:
                histogram = snapshot.histograms.get(key)
                if histogram is None:
                    continue
                _add_histogram(metric, labels, histogram)
            if metric.samples:
                yield metric


def _add_histogram(metric: Metric, labels: dict[str, str], histogram: HistogramSnapshot) -> None:
    for bound, count in zip((*map(repr, histogram.bounds), "+Inf"), histogram.cumulative, strict=True):
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
    metric.add_sample(f"{metric.name}_sum", labels, histogram.total)
    metric.add_sample(f"{metric.name}_count", labels, histogram.cumulative[-1])


@dataclass(frozen=True, slots=True)
class LimitCollector(Collector):
    """How often each limit of the edges has refused something."""

    limits: LimitCounter

    def collect(self) -> Iterator[Metric]:
        metric = Metric("trioton_limit_refusals_total", "Number of refusals by a limit of a protocol edge", "counter")
        for (protocol, limit), count in sorted(self.limits.counts().items()):
            metric.add_sample(metric.name, {"protocol": protocol, "limit": limit}, count)
        yield metric


@dataclass(frozen=True, slots=True)
class FailureCollector(Collector):
    """How often a callback has raised what it must not."""

    failures: CallbackFailures

    def collect(self) -> Iterator[Metric]:
        metric = Metric("trioton_callback_failures_total", "Number of callbacks that failed by a defect", "counter")
        for place, count in sorted(self.failures.counts().items()):
            metric.add_sample(metric.name, {"place": place}, count)
        yield metric


@dataclass(frozen=True, slots=True)
class TraceCollector(Collector):
    """Traces that were lost: their file or collector did not take them."""

    lost: Callable[[], int]

    def collect(self) -> Iterator[Metric]:
        metric = Metric("trioton_trace_lost_total", "Number of traces that could not be written", "counter")
        metric.add_sample(metric.name, {}, self.lost())
        yield metric


@dataclass(frozen=True, slots=True)
class LogCollector(Collector):
    """Log lines that were lost: their file or stream did not take them, or not in time."""

    lost: Callable[[], Mapping[str, int]]

    def collect(self) -> Iterator[Metric]:
        metric = Metric("trioton_log_lost_lines_total", "Number of log lines that could not be written", "counter")
        for name, count in self.lost().items():
            metric.add_sample(metric.name, {"log": name}, count)
        yield metric


class Metrics:
    """One server's registry.

    Args:
        snapshots: what has been counted so far, per model version.
        interval: how old the machine's readings may be, in seconds.
        limits: the refusals of the edges.
        failures: the defects that callbacks have raised.
        lost_traces: how many traces could not be written so far.
        lost_lines: how many lines of each log could not.
        has_counters: `--metrics-config counter_latencies`.
        custom: the metrics of the models' own.
        has_cpu: whether the machine's processors and memory are shown.
        gpus: the GPUs to show, if any; the caller runs them.
        residence: how the memory budget is used; None where there is none.
        devices: whose pool of pinned memory is shown.
    """

    def __init__(
        self,
        snapshots: Callable[[], Sequence[VersionSnapshot]],
        *,
        interval: float,
        limits: LimitCounter | None = None,
        failures: CallbackFailures | None = None,
        lost_traces: Callable[[], int] = lambda: 0,
        lost_lines: Callable[[], Mapping[str, int]] = dict,
        has_counters: bool = True,
        custom: Callable[[], Iterable[FamilyValues]] = tuple,
        has_cpu: bool = True,
        gpus: Gpus | None = None,
        residence: Callable[[], ResidenceSnapshot | None] = lambda: None,
        devices: Devices | None = None,
    ) -> None:
        self.registry = CollectorRegistry()
        self._custom = CustomExposition(custom)
        self.registry.register(ModelCollector(snapshots, has_counters, gpus))
        self.registry.register(LimitCollector(limits or LimitCounter()))
        self.registry.register(FailureCollector(failures or CallbackFailures()))
        self.registry.register(TraceCollector(lost_traces))
        self.registry.register(LogCollector(lost_lines))
        self.registry.register(PinnedMemoryCollector(devices or Devices()))
        self.registry.register(ResidenceCollector(residence))
        if has_cpu:
            self.registry.register(CpuCollector(Machine(interval)))
        if gpus is not None:
            self.registry.register(GpuCollector(gpus))

    def render(self) -> bytes:
        """Prometheus text, format 0.0.4."""
        return (render_text(self.registry) + self._custom.render()).encode()
