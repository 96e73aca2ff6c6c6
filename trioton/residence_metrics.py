"""Metrics of the memory budget, where one is set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.registry import Collector

from actors.lifecycle.residence import ResidenceSnapshot


@dataclass(frozen=True, slots=True)
class ResidenceCollector(Collector):
    """Nothing without a budget."""

    snapshot: Callable[[], ResidenceSnapshot | None]

    def collect(self) -> Iterator[Metric]:
        now = self.snapshot()
        if now is None:
            return
        for name, text, value in (
            ("trioton_model_memory_budget_bytes", "Memory that all models may hold together, in bytes", now.limit),
            ("trioton_model_memory_used_bytes", "Memory that models hold or are about to hold, in bytes", now.used),
            (
                "trioton_model_memory_waiting_requests",
                "Requests that wait for their model to load",
                now.waiting,
            ),
        ):
            gauge = Metric(name, text, "gauge")
            gauge.add_sample(name, {}, value)
            yield gauge
        for name, kind, text, values in (
            ("trioton_model_memory_bytes", "gauge", "Memory that a loaded model holds, in bytes", now.sizes),
            ("trioton_model_evictions_total", "counter", "Number of unloads for the memory budget", now.evictions),
            (
                "trioton_model_demand_loads_total",
                "counter",
                "Number of loads for a request",
                now.demand_loads,
            ),
        ):
            metric = Metric(name, text, kind)
            for model, value in sorted(values.items()):
                metric.add_sample(name, {"model": model}, value)
            yield metric
