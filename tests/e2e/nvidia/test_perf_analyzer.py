"""perf_analyzer, any version: the ways to send that it has, and its reports. `tests/e2e/test_perf_analyzer.py` has more
of the version that `make bench` unpacks."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.nvidia.programs import PERF_ANALYZER, build_models, program, run
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.slow
TIMEOUT_SECONDS = 120.0
# Three windows are always alike so.
WINDOWS = ("--measurement-mode", "count_windows", "--measurement-request-count", "20", "-r", "3", "-s", "999")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    program(PERF_ANALYZER)
    with ServerProcess(
        "--allow-client-shm=true", repository=build_models(tmp_path_factory.mktemp("models"))
    ) as process:
        yield process


def measure(server: ServerProcess, folder: Path, protocol: str, *words: object) -> dict[str, str]:
    """The row of its report."""
    command = [program(PERF_ANALYZER), "-u", server.addresses[protocol], "-i", protocol, "-f", "report.csv"]
    done = run([*command, *WINDOWS, *words], folder, TIMEOUT_SECONDS)
    assert done.returncode == 0
    (row,) = csv.DictReader((folder / "report.csv").read_text().splitlines())
    assert float(row["Inferences/Second"]) > 0
    return row


WAYS: dict[str, tuple[str, ...]] = {
    "concurrency": ("--concurrency-range", "4"),
    "async": ("--async", "--concurrency-range", "4"),
    "poisson": ("--request-rate-range", "200", "--request-distribution", "poisson"),
    "batches": ("-b", "4"),
    "shared memory": ("--shared-memory", "system", "--output-shared-memory-size", "4096"),
}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("way", WAYS)
def test_ways_to_send(server: ServerProcess, tmp_path: Path, way: str, protocol: str) -> None:
    measure(server, tmp_path, protocol, "-m", "add_sub", *WAYS[way])


def test_streaming(server: ServerProcess, tmp_path: Path) -> None:
    measure(server, tmp_path, "grpc", "-m", "add_sub", "--streaming", "--async", "--concurrency-range", "4")


def test_an_ensemble_has_a_table_of_each_model(server: ServerProcess, tmp_path: Path) -> None:
    row = measure(server, tmp_path, "grpc", "-m", "ensemble", "--verbose-csv")
    assert float(row["Avg latency"]) > 0
    assert {path.name for path in tmp_path.glob("*_v1.report.csv")} == {"add_sub_v1.report.csv", "second_v1.report.csv"}


@pytest.mark.parametrize("service", ["metrics", "http"])
def test_metrics_of_either_port(server: ServerProcess, tmp_path: Path, service: str) -> None:
    url = f"{server.addresses[service]}/metrics"
    collect = ("--collect-metrics", "--metrics-url", url, "--metrics-interval", "100")
    row = measure(server, tmp_path, "http", "-m", "add_sub", "--verbose-csv", *collect)
    assert "Avg GPU Utilization" in row


def test_the_export_of_a_profile(server: ServerProcess, tmp_path: Path) -> None:
    measure(server, tmp_path, "http", "-m", "add_sub", "--profile-export-file", "profile.json")
    (experiment,) = json.loads((tmp_path / "profile.json").read_text())["experiments"]
    assert experiment["experiment"] == {"mode": "concurrency", "value": 1}
    assert len(experiment["requests"]) >= 60
