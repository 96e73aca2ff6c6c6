"""Machine metrics: CPU, memory, GPUs and pinned memory. What cannot be read is left out.

Names, units and help texts are those of Triton's metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.registry import Collector

from backends.devices.devices import Devices
from trioton.gpus import GpuReading, Gpus
from trioton.machine import Machine


@dataclass(frozen=True, slots=True)
class CpuCollector(Collector):
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
                yield _single(name, help_text, value)


@dataclass(frozen=True, slots=True)
class GpuMetric:
    """A metric with one value per GPU."""

    name: str
    kind: str
    help: str
    value: Callable[[GpuReading], float | None]


GPU_METRICS: tuple[GpuMetric, ...] = (
    GpuMetric("nv_gpu_utilization", "gauge", "GPU utilization rate [0.0 - 1.0)", lambda r: r.utilization),
    GpuMetric("nv_gpu_memory_total_bytes", "gauge", "GPU total memory, in bytes", lambda r: r.memory_total_bytes),
    GpuMetric("nv_gpu_memory_used_bytes", "gauge", "GPU used memory, in bytes", lambda r: r.memory_used_bytes),
    GpuMetric("nv_gpu_power_usage", "gauge", "GPU power usage in watts", lambda r: r.power_watts),
    GpuMetric("nv_gpu_power_limit", "gauge", "GPU power management limit in watts", lambda r: r.power_limit_watts),
    GpuMetric(
        "nv_energy_consumption",
        "counter",
        "GPU energy consumption in joules since the server started",
        lambda r: r.energy_joules,
    ),
)


@dataclass(frozen=True, slots=True)
class GpuCollector(Collector):
    gpus: Gpus

    def collect(self) -> Iterator[Metric]:
        readings = self.gpus.readings()
        for row in GPU_METRICS:
            metric = Metric(row.name, row.help, row.kind)
            for reading in readings:
                value = row.value(reading)
                if value is not None:
                    metric.add_sample(row.name, {"gpu_uuid": reading.uuid}, value)
            if metric.samples:
                yield metric


@dataclass(frozen=True, slots=True)
class PinnedMemoryCollector(Collector):
    """The pool of pinned memory; of 0 bytes where there is no GPU to copy from and to."""

    devices: Devices

    def collect(self) -> Iterator[Metric]:
        pool = self.devices.pinned
        total, used = (pool.limit, pool.used_bytes) if self.devices.has_gpus else (0, 0)
        yield _single("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes", total)
        yield _single("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", used)


def _single(name: str, help_text: str, value: float) -> Metric:
    metric = Metric(name, help_text, "gauge")
    metric.add_sample(name, {}, value)
    return metric
