"""Machine metrics: CPU, memory, GPUs and pinned memory. What cannot be read is left out.

Names, units and help texts are those of Triton's metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from backends.devices.devices import Devices
from trioton.gpus import GpuReading, Gpus
from trioton.machine import Machine
from trioton.metrics.families import Family, Sample, Series, gauge


def cpu_series(machine: Machine) -> Iterator[Series]:
    reading = machine.reading()
    gauges: tuple[tuple[str, str, float | None], ...] = (
        ("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", reading.cpu_utilization),
        ("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", reading.memory_total_bytes),
        ("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", reading.memory_used_bytes),
    )
    for name, text, value in gauges:
        if value is not None:
            yield gauge(name, text, value)


class GpuMetric(NamedTuple):
    """A metric with one value per GPU."""

    family: Family
    value: Callable[[GpuReading], float | None]


GPU_METRICS: tuple[GpuMetric, ...] = (
    GpuMetric(Family("nv_gpu_utilization", "gauge", "GPU utilization rate [0.0 - 1.0)"), lambda r: r.utilization),
    GpuMetric(
        Family("nv_gpu_memory_total_bytes", "gauge", "GPU total memory, in bytes"), lambda r: r.memory_total_bytes
    ),
    GpuMetric(Family("nv_gpu_memory_used_bytes", "gauge", "GPU used memory, in bytes"), lambda r: r.memory_used_bytes),
    GpuMetric(Family("nv_gpu_power_usage", "gauge", "GPU power usage in watts"), lambda r: r.power_watts),
    GpuMetric(
        Family("nv_gpu_power_limit", "gauge", "GPU power management limit in watts"), lambda r: r.power_limit_watts
    ),
    GpuMetric(
        Family("nv_energy_consumption", "counter", "GPU energy consumption in joules since the server started"),
        lambda r: r.energy_joules,
    ),
)


def gpu_series(gpus: Gpus) -> Iterator[Series]:
    readings = gpus.readings()
    for row in GPU_METRICS:
        for reading in readings:
            value = row.value(reading)
            if value is not None:
                yield Series(row.family, (("gpu_uuid", reading.uuid),), (Sample(value),))


def pinned_memory_series(devices: Devices) -> Iterator[Series]:
    """The pool of pinned memory; of 0 bytes where there is no GPU to copy from and to."""
    pool = devices.pinned
    total, used = (pool.limit, pool.used_bytes) if devices.has_gpus else (0, 0)
    yield gauge("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes", total)
    yield gauge("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", used)
