"""Metrics of the server as a whole: what its limits have refused, its defects, what was lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from actors.lifecycle.snapshots import LoadSnapshot
from actors.metrics.histogram import HistogramSnapshot
from protocol.failures import CallbackFailures
from protocol.limits.counter import LimitCounter
from protocol.open_connections import OpenConnections
from trioton.metrics.edges import EdgeReading
from trioton.metrics.families import Family, Sample, Series, histogram_samples

_REFUSALS = Family("trioton_limit_refusals_total", "counter", "Number of refusals by a limit of a protocol edge")
_DEFECTS = Family("trioton_callback_failures_total", "counter", "Number of callbacks that failed by a defect")
_LOST_LINES = Family("trioton_log_lost_lines_total", "counter", "Number of log lines that could not be written")
_LOG_EVENTS = Family("trioton_log_events_total", "counter", "Number of events that were logged, by level")
_CONNECTIONS = Family("trioton_connections", "gauge", "Number of open connections of clients")
_STREAMS = Family("trioton_streams", "gauge", "Number of requests under way on connections of HTTP/2")
_LOADS = Family("trioton_model_loads_total", "counter", "Number of model versions that were loaded")
_LOAD_FAILURES = Family(
    "trioton_model_load_failures_total", "counter", "Number of loads that have failed, by the kind of the error"
)
_FAILING = Family("trioton_model_load_failed", "gauge", "1 for a model whose last load has failed")
_LAG = Family(
    "trioton_loop_lag_seconds",
    "histogram",
    "How late tasks of the event loop get their turn, looked at 20 times a second",
)
# Shown also where there was none yet, so that the first one is seen as a rise.
_KINDS = ("INTERNAL", "INVALID_ARG", "NOT_FOUND", "UNAVAILABLE", "UNSUPPORTED")
_LOST_TRACES = Family("trioton_trace_lost_total", "counter", "Number of traces that could not be written")


def refusal_series(limits: LimitCounter) -> Iterator[Series]:
    """How often each limit of the edges has refused something."""
    yield Series(_REFUSALS, (), ())
    for (protocol, limit), count in sorted(limits.counts().items()):
        yield Series(_REFUSALS, (("protocol", protocol), ("limit", limit)), (Sample(count),))


def defect_series(failures: CallbackFailures) -> Iterator[Series]:
    """How often a callback has raised what it must not."""
    yield Series(_DEFECTS, (), ())
    for place, count in sorted(failures.counts().items()):
        yield Series(_DEFECTS, (("place", place),), (Sample(count),))


def log_event_series(events: Mapping[str, int]) -> Iterator[Series]:
    """Nothing for a server that leaves the log to its program."""
    for level, count in events.items():
        yield Series(_LOG_EVENTS, (("level", level),), (Sample(count),))


def connection_series(connections: OpenConnections) -> Iterator[Series]:
    for protocol, counts in connections.counts().items():
        labels = (("protocol", protocol),)
        yield Series(_CONNECTIONS, labels, (Sample(counts.connections),))
        yield Series(_STREAMS, labels, (Sample(counts.streams),))


def load_series(loads: LoadSnapshot) -> Iterator[Series]:
    yield Series(_LOADS, (), (Sample(loads.loads),))
    for kind, count in {**dict.fromkeys(_KINDS, 0), **loads.failures}.items():
        yield Series(_LOAD_FAILURES, (("reason", kind),), (Sample(count),))
    yield Series(_FAILING, (), ())
    for model, has_failed in loads.has_failed:
        yield Series(_FAILING, (("model", model),), (Sample(1),)) if has_failed else Series(_FAILING, (), ())


def lag_series(lag: HistogramSnapshot, edges: Sequence[EdgeReading]) -> Iterator[Series]:
    """That of the server's own loop, and of those of its edge processes."""
    yield Series(_LAG, (), histogram_samples(lag.bounds, lag.cumulative, lag.total))
    for edge in edges:
        labels = (("edge", str(edge.number)),)
        yield Series(_LAG, labels, histogram_samples(edge.lag.bounds, edge.lag.cumulative, edge.lag.total))


def lost_line_series(lost: Mapping[str, int]) -> Iterator[Series]:
    """Log lines that their file or stream did not take, or not in time."""
    yield Series(_LOST_LINES, (), ())
    for log, count in lost.items():
        yield Series(_LOST_LINES, (("log", log),), (Sample(count),))


def lost_trace_series(lost: int) -> Iterator[Series]:
    """Traces that their file or collector did not take."""
    yield Series(_LOST_TRACES, (), (Sample(lost),))
