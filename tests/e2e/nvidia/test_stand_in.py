"""`trioton perf-analyzer` in place of the binary: started by Model Analyzer, and beside the original on one server."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.nvidia import test_model_analyzer
from tests.e2e.nvidia.programs import MODEL_ANALYZER, PERF_ANALYZER, build_models, executable, program, run
from tests.e2e.nvidia.test_perf_analyzer import WINDOWS
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.slow
TIMEOUT_SECONDS = 120.0


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    return executable(tmp_path / "perf_analyzer", "-m", "trioton", "perf-analyzer")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    program(PERF_ANALYZER)
    with ServerProcess(repository=build_models(tmp_path_factory.mktemp("models"))) as process:
        yield process


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_model_analyzer_in_brute_mode(tmp_path: Path, stand_in: Path, protocol: str) -> None:
    program(MODEL_ANALYZER)
    settings = {**test_model_analyzer.local(tmp_path), **test_model_analyzer.BRUTE}
    settings |= {"profile_models": "add_sub", "client_protocol": protocol}
    rows = test_model_analyzer.profile(tmp_path, settings, stand_in)
    assert {"add_sub_config_default", "add_sub_config_3"} <= test_model_analyzer.variants(rows)
    assert all(float(row["Throughput (infer/sec)"]) > 0 for row in rows)


def test_model_analyzer_in_quick_mode(tmp_path: Path, stand_in: Path) -> None:
    program(MODEL_ANALYZER)
    models = {"profile_models": {"ensemble": {"cpu_only": True}}, "cpu_only_composing_models": ["add_sub", "second"]}
    settings = {**test_model_analyzer.local(tmp_path), **test_model_analyzer.QUICK, **models}
    rows = test_model_analyzer.profile(tmp_path, settings, stand_in)
    assert len(test_model_analyzer.variants(rows)) > 1


COLUMNS: dict[str, tuple[str, ...]] = {
    "plain": ("-m", "add_sub"),
    "verbose": ("-m", "add_sub", "--verbose-csv", "--concurrency-range", "1:2:1"),
    "metrics": ("-m", "add_sub", "--verbose-csv", "--collect-metrics", "--metrics-url", "METRICS"),
    "a percentile at a rate": ("-m", "add_sub", "--percentile", "97", "--request-rate-range", "100"),
    "an ensemble": ("-m", "ensemble", "--verbose-csv"),
}


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("what", COLUMNS)
def test_columns_are_those_of_the_original(
    server: ServerProcess, tmp_path: Path, stand_in: Path, what: str, protocol: str
) -> None:
    words = [f"{server.addresses['metrics']}/metrics" if word == "METRICS" else word for word in COLUMNS[what]]
    headers = []
    for name, path in (("original", program(PERF_ANALYZER)), ("ours", stand_in)):
        folder = tmp_path / name
        folder.mkdir()
        command = [path, "-u", server.addresses[protocol], "-i", protocol, "-f", "report.csv", *WINDOWS, *words]
        assert run(command, folder, TIMEOUT_SECONDS).returncode == 0
        headers.append({each.name: each.read_text().splitlines()[0] for each in folder.glob("*.csv")})
    assert headers[0] == headers[1]


def test_exports_are_alike(server: ServerProcess, tmp_path: Path, stand_in: Path) -> None:
    found = []
    for name, path in (("original", program(PERF_ANALYZER)), ("ours", stand_in)):
        export = tmp_path / f"{name}.json"
        words = ("-m", "add_sub", "-u", server.addresses["grpc"], "-i", "grpc", "--profile-export-file", export)
        assert run([path, *words, *WINDOWS], tmp_path, TIMEOUT_SECONDS).returncode == 0
        (experiment,) = json.loads(export.read_text())["experiments"]
        found.append(experiment)
    original, ours = found
    assert original.keys() == ours.keys()
    assert original["experiment"] == ours["experiment"]
    assert len(original["window_boundaries"]) == len(ours["window_boundaries"]) == 4
    first, other = original["requests"][0], ours["requests"][0]
    assert first.keys() == other.keys()
    for member in ("request_inputs",):
        assert first[member].keys() == other[member].keys()
    assert first["response_outputs"][0].keys() == other["response_outputs"][0].keys()


def test_figures_are_near_the_originals(server: ServerProcess, tmp_path: Path, stand_in: Path) -> None:
    """At a rate that both can hold, the throughput is that rate."""
    for path in (program(PERF_ANALYZER), stand_in):
        command = [path, "-u", server.addresses["grpc"], "-i", "grpc", "-m", "add_sub", "-f", "report.csv"]
        assert run([*command, *WINDOWS, "--request-rate-range", "50"], tmp_path, TIMEOUT_SECONDS).returncode == 0
        (row,) = csv.DictReader((tmp_path / "report.csv").read_text().splitlines())
        assert float(row["Inferences/Second"]) == pytest.approx(50, rel=0.1)
