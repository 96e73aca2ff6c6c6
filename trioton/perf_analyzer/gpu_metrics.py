"""GPU figures of a server's metrics, by the GPU's id, over the samples of a measurement. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

_SAMPLE = re.compile(r'^(nv_gpu_\w+)\{[^}]*gpu_uuid="([^"]*)"[^}]*\}\s+(\S+)', re.MULTILINE)
UTILIZATION = "nv_gpu_utilization"
POWER = "nv_gpu_power_usage"
USED = "nv_gpu_memory_used_bytes"
TOTAL = "nv_gpu_memory_total_bytes"
FAMILIES = (UTILIZATION, POWER, USED, TOTAL)


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """By GPU: mean utilization from 0 to 1, mean watts, greatest bytes used, bytes in all."""

    utilization: Mapping[str, float] = field(default_factory=dict)
    power: Mapping[str, float] = field(default_factory=dict)
    memory_used: Mapping[str, float] = field(default_factory=dict)
    memory_total: Mapping[str, float] = field(default_factory=dict)


class GpuSamples:
    """What several readings amount to.

    Attributes:
        missing: families that no reading had.
    """

    def __init__(self) -> None:
        self._values: dict[str, dict[str, list[float]]] = {name: {} for name in FAMILIES}

    def add(self, text: str) -> None:
        """One reading of `/metrics`."""
        for name, gpu, value in _SAMPLE.findall(text):
            found = self._values.get(name)
            if found is None:
                continue
            try:
                number = float(value)
            except ValueError:
                continue
            if math.isfinite(number):
                found.setdefault(gpu, []).append(number)

    @property
    def missing(self) -> list[str]:
        return [name for name, found in self._values.items() if not found]

    def figures(self) -> GpuFigures:
        values = self._values
        return GpuFigures(
            utilization={gpu: fmean(each) for gpu, each in values[UTILIZATION].items()},
            power={gpu: fmean(each) for gpu, each in values[POWER].items()},
            memory_used={gpu: max(each) for gpu, each in values[USED].items()},
            memory_total={gpu: each[0] for gpu, each in values[TOTAL].items()},
        )
