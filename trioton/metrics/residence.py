"""Metrics of the memory budget, where one is set."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from actors.lifecycle.residence import ResidenceSnapshot
from trioton.metrics.families import Family, Sample, Series, gauge

_SIZE = Family("trioton_model_memory_bytes", "gauge", "Memory that a loaded model holds, in bytes")
_EVICTIONS = Family("trioton_model_evictions_total", "counter", "Number of unloads for the memory budget")
_DEMAND_LOADS = Family("trioton_model_demand_loads_total", "counter", "Number of loads for a request")


def residence_series(snapshot: Callable[[], ResidenceSnapshot | None]) -> Iterator[Series]:
    """Nothing without a budget."""
    now = snapshot()
    if now is None:
        return
    yield gauge("trioton_model_memory_budget_bytes", "Memory that all models may hold together, in bytes", now.limit)
    yield gauge("trioton_model_memory_used_bytes", "Memory that models hold or are about to hold, in bytes", now.used)
    yield gauge("trioton_model_memory_waiting_requests", "Requests that wait for their model to load", now.waiting)
    for family, values in ((_SIZE, now.sizes), (_EVICTIONS, now.evictions), (_DEMAND_LOADS, now.demand_loads)):
        yield Series(family, (), ())
        for model, value in sorted(values.items()):
            yield Series(family, (("model", model),), (Sample(value),))
