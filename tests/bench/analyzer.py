"""NVIDIA's `perf_analyzer`: its flags for a row, and its CSV report. Consulted by `load`."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path

from tests.bench.measurement import LoadFailed, Measurement
from tests.bench.rows import Protocol, Row

# perf_analyzer takes three windows at least and then wants them alike. A deviation this large is always met, so each
# run is three windows and its length is known; how far rounds differ is shown in the report instead.
WINDOWS = 3
ANY_DEVIATION = "999999"
FLAGS: Mapping[Protocol, tuple[str, ...]] = {
    "http": ("-i", "http"),
    "grpc": ("-i", "grpc"),
    "stream": ("-i", "grpc", "--streaming", "--async"),  # it has no synchronous calls for streams
    "shm": ("-i", "grpc", "--shared-memory=system"),
}


def arguments(row: Row, address: str, window_ms: int, report: Path) -> list[str]:
    """For one run, whose report goes into the file `report`."""
    flags = ["-m", row.model, "-u", address, "--concurrency-range", str(row.concurrency)]
    flags += [*FLAGS[row.protocol], "-p", str(window_ms), "-r", str(WINDOWS), "-s", ANY_DEVIATION]
    return [*flags, "-f", str(report)]


def parse_report(text: str) -> Measurement:
    """The figures in a CSV report of one concurrency. Raises LoadFailed where they are not there."""
    rows = list(csv.DictReader(io.StringIO(text)))
    if len(rows) != 1:
        raise LoadFailed(f"the report should have one line of figures and has {len(rows)}")
    measurement = Measurement(
        throughput=_figure(rows[0], "Inferences/Second"),
        p50=_figure(rows[0], "p50 latency"),
        p99=_figure(rows[0], "p99 latency"),
    )
    if measurement.throughput <= 0:
        raise LoadFailed("no request was answered")
    return measurement


def _figure(row: Mapping[str, str | None], column: str) -> float:
    text = row.get(column)
    try:
        figure = float(text or "")
    except ValueError:
        figure = math.nan
    if not math.isfinite(figure):
        raise LoadFailed(f"the report's column {column!r} should hold a number and holds {text!r}")
    return figure
