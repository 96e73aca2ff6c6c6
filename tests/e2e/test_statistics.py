"""The statistics of a decoupled Python model, response by response, asked with real clients over both protocols."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.client import Client
from tests.e2e.server_process import ServerProcess

REPEAT = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    \"\"\"Sends COUNT[0] responses, then an error if COUNT[1] is not 0.\"\"\"

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count, fails = pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()
            for number in range(count):
                output = pb_utils.Tensor("NUMBER", np.array([number], np.int32))
                sender.send(pb_utils.InferenceResponse([output]))
            if fails:
                sender.send(pb_utils.InferenceResponse([], pb_utils.TritonError("no more")))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 2 ] } ]
output [ { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
"""
DURATIONS = {"compute_infer", "compute_output", "success", "fail", "empty_response", "cancel"}


@pytest.fixture
def streaming(tmp_path: Path) -> Iterator[ServerProcess]:
    version = tmp_path / "repeat" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(REPEAT)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    with ServerProcess(repository=tmp_path) as process:
        yield process


def stream(grpc: Client, count: int, *, fails: bool = False) -> None:
    """Run the model to its final response."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    grpc.raw.start_stream(lambda result, error: answers.put((result, error)))
    inputs = grpc.tensors({"COUNT": np.array([count, fails], np.int32)})
    grpc.raw.async_stream_infer("repeat", inputs, enable_empty_final_response=True)
    for _ in range(count + 1):
        _, error = answers.get(timeout=30)
        assert (error is not None) <= fails
    grpc.raw.stop_stream()


def rows(client: Client) -> dict[str, dict[str, int]]:
    """How often each thing has happened, by the response's index.

    gRPC's JSON has 64-bit numbers as strings, and leaves out what is empty.
    """
    (model,) = client.json("get_inference_statistics", "repeat")["model_stats"]
    found = {}
    for index, row in model.get("response_stats", {}).items():
        assert set(row) == DURATIONS
        found[index] = {name: int(value["count"]) for name, value in row.items() if value.get("count")}
        for value in row.values():
            assert bool(int(value.get("count", 0))) >= bool(int(value.get("ns", 0))), "no time without an event"
    return found


def test_each_response_of_a_decoupled_model_is_counted(streaming: ServerProcess) -> None:
    sent = {"compute_infer": 1, "compute_output": 1, "success": 1}
    with Client("http", streaming.addresses["http"]) as http, Client("grpc", streaming.addresses["grpc"]) as grpc:
        for client in (http, grpc):
            assert rows(client) == {}
        stream(grpc, 2)
        for client in (http, grpc):
            assert rows(client) == {"0": sent, "1": sent, "2": {"empty_response": 1}}
        stream(grpc, 1, fails=True)
        for client in (http, grpc):
            assert rows(client) == {
                "0": {"compute_infer": 2, "compute_output": 2, "success": 2},
                "1": {"compute_infer": 2, "compute_output": 2, "success": 1, "fail": 1},
                "2": {"empty_response": 1},
            }


def test_the_memory_of_a_python_models_processes_is_told(streaming: ServerProcess) -> None:
    sizes = []
    for protocol in ("http", "grpc"):
        with Client(protocol, streaming.addresses[protocol]) as client:
            (model,) = client.json("get_inference_statistics", "repeat")["model_stats"]
            (used,) = model["memory_usage"]
            assert used["type"] == "CPU"
            assert int(used.get("id", 0)) == 0
            sizes.append(int(used["byte_size"]))
    assert all(size > 2_000_000 for size in sizes), "two interpreters with numpy"
