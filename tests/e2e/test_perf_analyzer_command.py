"""`trioton perf-analyzer` in perf_analyzer's modes, against a real server: what it sends is answered, and reported."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from onnx import TensorProto, helper

from tests.backends.engines.models import write_scripted
from tests.e2e.repository import add_add_sub, save
from tests.e2e.server_process import ServerProcess
from tests.e2e.test_perf_analyzer import CONTROLS, DECOUPLED_MODEL, SEQUENCE_MODEL, add_python_model

# One window, of so many requests: however slow the machine is.
ONCE = ("--request-count", "60")
# Three windows, whatever they are like.
WINDOWS = ("--measurement-mode", "count_windows", "--measurement-request-count", "5", "-r", "3", "-s", "99999")
TIMEOUT_SECONDS = 60.0
ROW = [float(n) for n in range(16)]
STEP: dict[str, Any] = {"INPUT0": ROW, "INPUT1": {"content": ROW, "shape": [16]}}
GOOD = {"OUTPUT0": [2 * n for n in ROW], "OUTPUT1": [0.0] * 16}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("loaded")
    add_add_sub(repository / "add_sub", versions=(1,))
    add_python_model(repository / "decoupled", DECOUPLED_MODEL, "model_transaction_policy { decoupled: true }")
    add_python_model(repository / "sequence", SEQUENCE_MODEL, f"sequence_batching {{ {CONTROLS} }}")
    tensors = [helper.make_tensor_value_info(name, TensorProto.STRING, ["batch", 2]) for name in ("TEXT", "SAME")]
    nodes = [helper.make_node("Identity", ["TEXT"], ["SAME"])]
    save(nodes, tensors[:1], tensors[1:], repository / "strings" / "1" / "model.onnx")
    (repository / "strings" / "config.pbtxt").write_text('backend: "onnxruntime"\nmax_batch_size: 4\n')
    write_scripted(repository)
    with ServerProcess("--allow-client-shm=true", repository=repository) as process:
        yield process


def run(server: ServerProcess, folder: Path, protocol: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trioton", "perf-analyzer", "-u", server.addresses[protocol], *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )


def measure(server: ServerProcess, folder: Path, protocol: str, model: str, *words: object) -> dict[str, str]:
    """The row of its report."""
    done = run(
        server,
        folder,
        protocol,
        "-m",
        model,
        "-i",
        protocol,
        "-f",
        "report.csv",
        *words,
        *(() if WINDOWS[0] in words else ONCE),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = csv.DictReader((folder / "report.csv").read_text().splitlines())
    assert float(row["Inferences/Second"]) > 0
    return row


def exchanges(folder: Path) -> list[dict[str, Any]]:
    (experiment,) = json.loads((folder / "profile.json").read_text())["experiments"]
    found: list[dict[str, Any]] = experiment["requests"]
    return found


MODES: dict[str, tuple[str, ...]] = {
    "concurrency": ("--sync", "--concurrency-range", "4"),
    "constant rate": ("--request-rate-range", "200"),
    "Poisson": ("--request-rate-range", "200", "--request-distribution", "poisson"),
    "batches": ("-b", "4"),
    "zeros": ("--input-data", "zero"),
    "shared memory": ("--shared-memory", "system", "--concurrency-range", "4"),
    "warm-up": ("--warmup-request-count", "10"),
    "windows of requests": WINDOWS,
    "windows of time": ("--measurement-mode", "time_windows", "-p", "1000", "-r", "3", "-s", "99999"),
}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("mode", MODES)
def test_modes(loaded: ServerProcess, tmp_path: Path, mode: str, protocol: str) -> None:
    row = measure(loaded, tmp_path, protocol, "add_sub", *MODES[mode])
    assert int(row["p50 latency"]) > 0
    assert "Server Queue" in row


GRPC_MODES: dict[str, tuple[str, ...]] = {
    "streaming": ("add_sub", "--streaming", "--async", "--concurrency-range", "4"),
    "streaming, shared memory": ("add_sub", "--streaming", "--async", "--shared-memory", "system"),
    "decoupled": ("decoupled", "--streaming", "--async", "--concurrency-range", "2"),
    "sequences on a stream": ("sequence", "--streaming", "--async", "--concurrency-range", "3"),
}


@pytest.mark.parametrize("mode", GRPC_MODES)
def test_modes_of_grpc(loaded: ServerProcess, tmp_path: Path, mode: str) -> None:
    row = measure(loaded, tmp_path, "grpc", *GRPC_MODES[mode])
    if mode == "decoupled":
        assert float(row["Response Throughput"]) == pytest.approx(3 * float(row["Inferences/Second"]), rel=0.01)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_sequences(loaded: ServerProcess, tmp_path: Path, protocol: str) -> None:
    words = ("--sequence-length", 5, "--sequence-length-variation", 0, "--profile-export-file", "profile.json")
    measure(loaded, tmp_path, protocol, "sequence", "--concurrency-range", 3, *words)
    lengths: dict[int, int] = {}
    for exchange in exchanges(tmp_path):
        lengths[exchange["sequence_id"]] = lengths.get(exchange["sequence_id"], 0) + 1
    assert max(lengths.values()) == 5
    assert sum(length == 5 for length in lengths.values()) >= len(lengths) - 6  # but those at either end


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_texts(loaded: ServerProcess, tmp_path: Path, protocol: str) -> None:
    words = ("--string-data", "größe", "--profile-export-file", "profile.json")
    measure(loaded, tmp_path, protocol, "strings", *words)
    first = exchanges(tmp_path)[0]
    assert first["request_inputs"]["TEXT"] == first["response_outputs"][0]["SAME"] == ["größe", "größe"]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_data_with_outputs_that_are_expected(loaded: ServerProcess, tmp_path: Path, protocol: str) -> None:
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [[STEP, STEP], [STEP]], "validation_data": [[GOOD, GOOD], [GOOD]]}))
    measure(loaded, tmp_path, protocol, "add_sub", "--input-data", data, "-b", 2)


def test_outputs_that_are_not_what_is_expected(loaded: ServerProcess, tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [STEP], "validation_data": [{**GOOD, "OUTPUT1": [1.0] * 16}]}))
    done = run(loaded, tmp_path, "grpc", "-m", "add_sub", "-i", "grpc", *ONCE, "--input-data", data)
    assert done.returncode == 99
    assert "output 'OUTPUT1' is not what the data expects" in done.stderr


def test_an_export_and_metrics(loaded: ServerProcess, tmp_path: Path) -> None:
    metrics = ("--collect-metrics", "--metrics-url", f"{loaded.addresses['metrics']}/metrics", "--verbose-csv")
    row = measure(loaded, tmp_path, "http", "add_sub", *metrics, "--profile-export-file", "profile.json")
    assert {"Avg latency", "request/response", "response wait", "Avg GPU Utilization"} <= row.keys()
    found = exchanges(tmp_path)
    assert found
    for exchange in found:
        assert exchange["timestamp"] < exchange["response_timestamps"][0]
        inputs = exchange["request_inputs"]
        total = [a + b for a, b in zip(inputs["INPUT0"], inputs["INPUT1"], strict=True)]
        assert exchange["response_outputs"][0]["OUTPUT0"] == pytest.approx(total, rel=1e-6)


def test_a_schedule(loaded: ServerProcess, tmp_path: Path) -> None:
    """Each entry is sent at its time, once."""
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [{**STEP, "timestamp": 40 * number} for number in range(8)]}))
    measure(
        loaded,
        tmp_path,
        "grpc",
        "add_sub",
        *("--fixed-schedule", "--input-data", data, "--profile-export-file", "profile.json"),
    )
    times = sorted(exchange["timestamp"] for exchange in exchanges(tmp_path))
    assert [round((each - times[0]) / 1e6) for each in times] == [40 * number for number in range(8)]  # as planned


def test_openai(loaded: ServerProcess, tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    message = {"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 8, "stream": True}
    data.write_text(json.dumps({"data": [{"payload": [{"model": "echo", **message}]}]}))
    done = run(
        loaded,
        tmp_path,
        "http",
        *("-m", "echo", "--service-kind", "openai", "--endpoint", "v1/chat/completions", "--async", "--streaming"),
        *("--input-data", data, "--profile-export-file", "profile.json", "-f", "report.csv", *ONCE),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first = exchanges(tmp_path)[0]
    assert len(first["response_timestamps"]) > 1
    assert "one two three" in first["request_inputs"]["payload"]
    assert any("chat.completion.chunk" in output["response"] for output in first["response_outputs"])


def test_a_range_of_levels(loaded: ServerProcess, tmp_path: Path) -> None:
    done = run(loaded, tmp_path, "http", "-m", "add_sub", "-f", "r.csv", *WINDOWS, "--concurrency-range", "1:3:1")
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "r.csv").read_text().splitlines()))
    assert sorted(row["Concurrency"] for row in rows) == ["1", "2", "3"]
    rates = [float(row["Inferences/Second"]) for row in rows]
    assert rates == sorted(rates)


def test_what_is_never_alike(loaded: ServerProcess, tmp_path: Path) -> None:
    done = run(loaded, tmp_path, "http", "-m", "add_sub", *WINDOWS, "-s", "0")
    assert done.returncode == 2
    assert "Failed to obtain stable measurement" in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("-m", "nothing"), "unknown model: 'nothing'"),
        (("-m", "add_sub", "--shape", "INPUT0:3"), "expects [16]"),
        (("-m", "add_sub", "--request-parameter", "a:b"), "--request-parameter"),
    ],
)
def test_what_cannot_be_measured(loaded: ServerProcess, tmp_path: Path, words: tuple[str, ...], text: str) -> None:
    done = run(loaded, tmp_path, "http", *words)
    assert done.returncode == 99
    assert text in done.stderr


def regions(server: ServerProcess) -> list[str]:
    """That the server knows."""
    with urlopen(f"http://{server.addresses['http']}/v2/systemsharedmemory/status") as answer:
        return sorted(region["name"] for region in json.load(answer))


def test_nothing_of_shared_memory_stays(loaded: ServerProcess, tmp_path: Path) -> None:
    measure(loaded, tmp_path, "http", "add_sub", "--shared-memory", "system")
    assert not regions(loaded)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ended_in_the_middle(loaded: ServerProcess, tmp_path: Path, how: signal.Signals) -> None:
    """Whatever a killed process has left is taken back by the next one."""
    words = ["-m", "add_sub", "-u", loaded.addresses["http"], "--shared-memory", "system", "-p", "60000"]
    with subprocess.Popen(
        [sys.executable, "-m", "trioton", "perf-analyzer", *words],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        wait_until(lambda: len(regions(loaded)) == 2)
        names = regions(loaded)
        process.send_signal(how)
        process.wait(TIMEOUT_SECONDS)
    if how is signal.SIGKILL:
        assert regions(loaded) == names
        measure(loaded, tmp_path, "http", "add_sub", "--shared-memory", "system")
    assert not regions(loaded)


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)
