"""One turn: one run of NVIDIA's `perf_analyzer` against one server. Between `contest` and the operating system."""

from __future__ import annotations

import csv
import io
import math
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bench.rows import Protocol, Row

# perf_analyzer takes three windows at least and then wants them alike. A deviation this large is always met, so each
# run is three windows and its length is known; how far rounds differ is shown in the report instead.
WINDOWS = 3
ANY_DEVIATION = "999"
# What a run may take beyond its windows: connecting, asking for the model's metadata, the last replies.
GRACE_SECONDS = 20.0
FLAGS: Mapping[Protocol, tuple[str, ...]] = {
    "http": ("-i", "http"),
    "grpc": ("-i", "grpc"),
    "stream": ("-i", "grpc", "--streaming", "--async"),  # it has no synchronous calls for streams
    "shm": ("-i", "grpc", "--shared-memory=system"),
}


@dataclass(frozen=True, slots=True)
class Measurement:
    throughput: float  # inferences per second
    p50: float  # microseconds, as the client sees them
    p99: float


class LoadFailed(Exception):
    """The run gave no figures; the message is what the load generator said last."""


@dataclass(frozen=True, slots=True)
class LoadGenerator:
    program: Path
    environment: Mapping[str, str]
    window_ms: int
    grace_seconds: float = GRACE_SECONDS

    def run(self, row: Row, address: str) -> Measurement:
        """Load `address` (host:port of the row's port) as the row says. Bounded; raises LoadFailed."""
        limit = WINDOWS * self.window_ms / 1000 + self.grace_seconds
        # A proxy named in the environment is not for loopback.
        environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            report = Path(folder) / "report.csv"
            process = subprocess.Popen(
                [str(self.program), *self.arguments(row, address, report)],
                env={**environment, **self.environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            try:
                output, _ = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                raise LoadFailed(f"no result within {limit:.0f} s") from None
            finally:
                _kill(process)
            if process.returncode != 0 or not report.is_file():
                raise LoadFailed(last_words(output) or f"perf_analyzer ended with {process.returncode}")
            return parse_report(report.read_text())

    def arguments(self, row: Row, address: str, report: Path) -> list[str]:
        arguments = ["-m", row.model, "-u", address, "--concurrency-range", str(row.concurrency)]
        arguments += FLAGS[row.protocol]
        arguments += ["-p", str(self.window_ms), "-r", str(WINDOWS), "-s", ANY_DEVIATION]
        return [*arguments, "-f", str(report)]


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


def last_words(output: str) -> str:
    """The last line that a person would read, of what a program wrote before it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _kill(process: subprocess.Popen[str]) -> None:
    """End the run if it has not ended: the process group is its own, so nothing else is touched."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
