"""NVIDIA's load generator in its modes: what it sends is answered, and it counts no failure.

`make bench` and the gate unpack the program into `.bench/`; where it is not, these tests are skipped.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from tests.bench.prepare import CLIENT_WHEEL
from tests.e2e.repository import add_add_sub, save
from tests.e2e.server_process import ServerProcess

BENCH = Path(__file__).parents[2] / ".bench"
PROGRAM = BENCH / CLIENT_WHEEL.replace("==", "-") / "bin" / "perf_analyzer"

pytestmark = pytest.mark.skipif(
    not PROGRAM.is_file(), reason="perf_analyzer is not there; make bench and .ci/run unpack it"
)

# It wants three windows in a row that are alike within so many percent: always met, so that a run is three windows, but
# where none of a window's requests was answered in it, on a busy machine.
WINDOWS = ("--measurement-mode", "count_windows", "--measurement-request-count", "20", "-r", "20", "-s", "999")
TIMEOUT_SECONDS = 60.0

DECOUPLED_MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            for _ in range(3):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
SEQUENCE_MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())])
            for r in requests
        ]
"""
PYTHON_CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
CONTROLS = 'control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] } ]'


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
    with ServerProcess("--allow-client-shm=true", repository=repository) as process:
        yield process


def add_python_model(model: Path, code: str, more: str) -> None:
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(code)
    (model / "config.pbtxt").write_text(PYTHON_CONFIG + more)


def measure(server: ServerProcess, folder: Path, protocol: str, model: str, *arguments: str) -> tuple[float, str]:
    """Requests that were answered in a second, and what the program said."""
    report = folder / "report.csv"
    command = [str(PROGRAM), "-m", model, "-u", server.addresses[protocol], "-i", protocol, "-f", str(report)]
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    done = subprocess.run(
        [*command, *WINDOWS, *arguments],
        env={**environment, "LD_LIBRARY_PATH": str(BENCH / "lib")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    (row,) = csv.DictReader(report.read_text().splitlines())
    return float(row["Inferences/Second"]), said


MODES: dict[str, tuple[str, ...]] = {
    "sync": ("--sync", "--concurrency-range", "4"),
    "async": ("--async", "--concurrency-range", "4"),
    "request rate": ("--request-rate-range", "200"),
    "batches": ("-b", "4"),
    "zeros": ("--input-data", "zero"),
    "shared memory": ("--shared-memory", "system", "--output-shared-memory-size", "4096"),
    "shared memory, async": ("--shared-memory", "system", "--async", "--concurrency-range", "4"),
}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("mode", MODES)
def test_modes(loaded: ServerProcess, tmp_path: Path, mode: str, protocol: str) -> None:
    rate, said = measure(loaded, tmp_path, protocol, "add_sub", *MODES[mode])
    assert rate > 0
    assert "Failed" not in said


GRPC_MODES: dict[str, tuple[str, ...]] = {
    "streaming": ("add_sub", "--streaming", "--async", "--concurrency-range", "4"),
    "streaming, shared memory": ("add_sub", "--streaming", "--async", "--shared-memory", "system"),
    "decoupled": ("decoupled", "--streaming", "--async", "--concurrency-range", "2"),
    "gzip": ("add_sub", "--grpc-compression-algorithm", "gzip"),
    "deflate": ("add_sub", "--grpc-compression-algorithm", "deflate"),
    "sequences on a stream": ("sequence", "--streaming", "--async", "--concurrency-range", "3"),
}


@pytest.mark.parametrize("mode", GRPC_MODES)
def test_modes_of_grpc(loaded: ServerProcess, tmp_path: Path, mode: str) -> None:
    rate, _ = measure(loaded, tmp_path, "grpc", *GRPC_MODES[mode])
    assert rate > 0


@pytest.mark.parametrize("how", ["binary", "json"])
def test_tensors_over_http(loaded: ServerProcess, tmp_path: Path, how: str) -> None:
    """Either form of tensors, in both directions."""
    formats = ("--input-tensor-format", how, "--output-tensor-format", how)
    rate, _ = measure(loaded, tmp_path, "http", "add_sub", *formats)
    assert rate > 0


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("way", [(), ("--async",)], ids=["sync", "async"])
def test_sequences(loaded: ServerProcess, tmp_path: Path, protocol: str, way: tuple[str, ...]) -> None:
    ids = ("--sequence-length", "5", "--sequence-id-range", "1:1000000")
    rate, _ = measure(loaded, tmp_path, protocol, "sequence", "--concurrency-range", "3", *ids, *way)
    assert rate > 0


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("texts", [("--string-data", "größe"), ("--string-length", "40")], ids=["given", "random"])
def test_strings(loaded: ServerProcess, tmp_path: Path, protocol: str, texts: tuple[str, ...]) -> None:
    rate, _ = measure(loaded, tmp_path, protocol, "strings", *texts)
    assert rate > 0


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_data_from_a_file(loaded: ServerProcess, tmp_path: Path, protocol: str) -> None:
    """Several streams of several steps, the second with the outputs that it must give."""
    row = [float(n) for n in range(16)]
    step = {"INPUT0": row, "INPUT1": {"content": row, "shape": [16]}}
    good = {"OUTPUT0": [2 * n for n in row], "OUTPUT1": [0.0] * 16}
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"data": [[step, step], [step]], "validation_data": [[good, good], [good]]}))
    rate, _ = measure(loaded, tmp_path, protocol, "add_sub", "--input-data", str(data))
    assert rate > 0


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_metrics_are_collected(loaded: ServerProcess, tmp_path: Path, protocol: str) -> None:
    address = f"{loaded.addresses['metrics']}/metrics"
    collect = ("--collect-metrics", "--metrics-url", address, "--metrics-interval", "100")
    rate, _ = measure(loaded, tmp_path, protocol, "add_sub", "--verbose-csv", *collect)
    assert rate > 0
