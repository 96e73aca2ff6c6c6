"""Metrics of edge processes: connections, restarts, and how late their loops are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from actors.metrics.histogram import HistogramSnapshot
from trioton.metrics.families import Family, Sample, Series

_CONNECTIONS = Family("trioton_edge_connections", "gauge", "Number of open connections of an edge process")
_RESTARTS = Family("trioton_edge_restarts_total", "counter", "Number of times that an edge process was started again")

_RELAYED = Family(
    "trioton_edge_relayed_requests_total",
    "counter",
    "Number of requests that an edge process has passed on to the core's process to be answered",
)


@dataclass(frozen=True, slots=True)
class EdgeReading:
    """Of the edge process with that number, over all of its restarts."""

    number: int
    connections: int
    restarts: int
    relayed: int
    lag: HistogramSnapshot


def edge_series(edges: Sequence[EdgeReading]) -> Iterator[Series]:
    """Nothing without edge processes."""
    for edge in edges:
        labels = (("edge", str(edge.number)),)
        yield Series(_CONNECTIONS, labels, (Sample(edge.connections),))
        yield Series(_RESTARTS, labels, (Sample(edge.restarts),))
        yield Series(_RELAYED, labels, (Sample(edge.relayed),))
