"""Metrics of the server as a whole: what its limits have refused, its defects, what was lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from protocol.failures import CallbackFailures
from protocol.limits.counter import LimitCounter
from trioton.metrics.families import Family, Sample, Series

_REFUSALS = Family("trioton_limit_refusals_total", "counter", "Number of refusals by a limit of a protocol edge")
_DEFECTS = Family("trioton_callback_failures_total", "counter", "Number of callbacks that failed by a defect")
_LOST_LINES = Family("trioton_log_lost_lines_total", "counter", "Number of log lines that could not be written")
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


def lost_line_series(lost: Mapping[str, int]) -> Iterator[Series]:
    """Log lines that their file or stream did not take, or not in time."""
    yield Series(_LOST_LINES, (), ())
    for log, count in lost.items():
        yield Series(_LOST_LINES, (("log", log),), (Sample(count),))


def lost_trace_series(lost: int) -> Iterator[Series]:
    """Traces that their file or collector did not take."""
    yield Series(_LOST_TRACES, (), (Sample(lost),))
