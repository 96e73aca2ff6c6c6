"""The metrics that a server shows: what the actors have counted, and the machine's load, read when they are asked for.

Names, labels and help texts are those of Triton's metrics extension (Triton, "Metrics"). Each server has a registry of
its own. `protocol.http.metrics` serves what `Metrics.render` gives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from actors.statistics import FailureReason, VersionSnapshot
from trioton.exposition import render_text
from trioton.machine import Machine

_NOT_IN_A_LABEL = re.compile(r"[^a-zA-Z0-9_]")
_FAILURES = "nv_inference_request_failure"


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


@dataclass(frozen=True, slots=True)
class ModelCollector(Collector):
    """The metrics of every loaded model version."""

    snapshots: Callable[[], Sequence[VersionSnapshot]]

    def collect(self) -> Iterator[Metric]:
        labelled = [(_labels(snapshot), snapshot) for snapshot in self.snapshots()]
        for row in MODEL_METRICS:
            metric = Metric(row.name, row.help, row.kind)
            for labels, snapshot in labelled:
                metric.add_sample(row.name, labels, row.value(snapshot))
            yield metric
        failures = Metric(_FAILURES, "Number of failed inference requests, all batch sizes", "counter")
        for labels, snapshot in labelled:
            for reason in FailureReason:
                failures.add_sample(
                    _FAILURES, {**labels, "reason": reason.value}, snapshot.failures.get(reason.value, 0)
                )
        yield failures


@dataclass(frozen=True, slots=True)
class MachineCollector(Collector):
    """The gauges of the machine; those that cannot be read are left out."""

    machine: Machine

    def collect(self) -> Iterator[Metric]:
        reading = self.machine.reading()
        gauges: tuple[tuple[str, str, float | None], ...] = (
            ("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", reading.cpu_utilization),
            ("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", reading.memory_total_bytes),
            ("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", reading.memory_used_bytes),
        )
        for name, help_text, value in gauges:
            if value is not None:
                metric = Metric(name, help_text, "gauge")
                metric.add_sample(name, {}, value)
                yield metric


class Metrics:
    """One server's registry.

    Args:
        snapshots: what has been counted so far, per model version.
        interval: how old the machine's readings may be, in seconds.
    """

    def __init__(self, snapshots: Callable[[], Sequence[VersionSnapshot]], *, interval: float) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(ModelCollector(snapshots))
        self.registry.register(MachineCollector(Machine(interval)))

    def render(self) -> bytes:
        """Prometheus text, format 0.0.4."""
        return render_text(self.registry)


def _labels(snapshot: VersionSnapshot) -> dict[str, str]:
    tags = {f"_{_NOT_IN_A_LABEL.sub('_', tag)}": value for tag, value in snapshot.metric_tags.items()}
    return {**tags, "model": snapshot.model, "version": str(snapshot.version)}
