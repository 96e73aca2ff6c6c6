"""One turn: one run of a load generator against one server. Between `contest` and the operating system."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench import analyzer, wrk
from tests.bench.analyzer import WINDOWS
from tests.bench.measurement import LoadFailed, Measurement, last_words
from tests.bench.prepare import Tools
from tests.bench.rows import Row
from tests.bench.stuck import unread

# What a run may take beyond its windows: connecting, asking for the model's metadata, the last replies. `perf_analyzer`
# with 64 threads on few cores sometimes goes on asking for many seconds before its main thread sees that it is over.
GRACE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class LoadGenerator:
    """`perf_analyzer`, and `wrk` for the rows that it measures badly."""

    program: Path
    environment: Mapping[str, str]
    window_ms: int
    wrk: Path | None = None
    grace_seconds: float = GRACE_SECONDS

    @classmethod
    def of(cls, tools: Tools, window_ms: int) -> LoadGenerator:
        found = shutil.which("wrk")
        return cls(tools.analyzer, tools.analyzer_environment, window_ms, Path(found) if found else None)

    @property
    def seconds(self) -> float:
        """How long a run takes, beside its beginning and its end."""
        return WINDOWS * self.window_ms / 1000

    def can_run(self, row: Row) -> bool:
        return row.protocol != "json" or self.wrk is not None

    def run(self, row: Row, address: str) -> Measurement:
        """Load `address` (host:port of the row's port) as the row says. Bounded; raises LoadFailed."""
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            if row.protocol == "json":
                return self._run_wrk(row, address, Path(folder) / "script.lua")
            return self._run_analyzer(row, address, Path(folder) / "report.csv")

    def _run_analyzer(self, row: Row, address: str, report: Path) -> Measurement:
        output = self._run(address, self.program, analyzer.arguments(row, address, self.window_ms, report))
        if not report.is_file():
            raise LoadFailed(last_words(output) or "perf_analyzer wrote no report")
        return analyzer.parse_report(report.read_text())

    def _run_wrk(self, row: Row, address: str, script: Path) -> Measurement:
        if self.wrk is None:
            raise LoadFailed(wrk.ADVICE)
        script.write_text(wrk.script())
        return wrk.parse_output(self._run(address, self.wrk, wrk.arguments(row, address, self.seconds, script)))

    def _run(self, address: str, program: Path, arguments: Sequence[str]) -> str:
        """What the program prints."""
        limit = self.seconds + self.grace_seconds
        # A proxy named in the environment is not for loopback.
        environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        process = subprocess.Popen(
            [str(program), *arguments],
            env={**environment, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            about = unread(int(address.rpartition(":")[2]))
            raise LoadFailed(f"no result within {limit:.0f} s; {about}") from None
        finally:
            _kill(process)
        if process.returncode != 0:
            raise LoadFailed(last_words(output) or f"{program.name} ended with {process.returncode}")
        return output


def _kill(process: subprocess.Popen[str]) -> None:
    """End the run if it has not ended: the process group is its own, so nothing else is touched."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
