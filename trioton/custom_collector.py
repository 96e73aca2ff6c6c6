"""Prometheus collector of the custom metrics that models define."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.registry import Collector

from actors.metrics.custom import FamilyValues


@dataclass(frozen=True, slots=True)
class CustomCollector(Collector):
    """What the models count for themselves, under the names that they have given."""

    families: Callable[[], Iterable[FamilyValues]]

    def collect(self) -> Iterator[Metric]:
        for family in self.families():
            metric = Metric(family.name, family.description, family.kind)
            for value in family.values:
                if family.kind == "histogram":
                    add_histogram(metric, dict(value.labels), value.bounds, value.cumulative, value.value)
                else:
                    metric.add_sample(family.name, dict(value.labels), value.value)
            yield metric


def is_own_name(name: str) -> bool:
    """Whether a metric of this name is, or may one day be, one of the server's."""
    return name.startswith(("nv_", "trioton_"))


def add_histogram(
    metric: Metric, labels: dict[str, str], bounds: Sequence[float], cumulative: Sequence[int], total: float
) -> None:
    """The samples of one histogram; `cumulative` are the counts up to each bound, and of all."""
    for bound, count in zip((*bounds, math.inf), cumulative, strict=True):
        metric.add_sample(
            f"{metric.name}_bucket", {**labels, "le": "+Inf" if math.isinf(bound) else repr(bound)}, count
        )
    metric.add_sample(f"{metric.name}_sum", labels, total)
    metric.add_sample(f"{metric.name}_count", labels, cumulative[-1])
