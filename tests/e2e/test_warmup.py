"""Warm-up: what a model was given before it became ready, and what a failed one does to its load."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client
from tests.e2e.server_process import ServerProcess

# Answers with what the executions before this one were given: rows and sum of each.
REMEMBERS = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.seen = []

    def execute(self, requests):
        seen = np.array([json.dumps(self.seen).encode()], np.object_)
        arrays = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        self.seen.append([sum(len(array) for array in arrays), float(sum(array.sum() for array in arrays))])
        if any(array.sum() < 0 for array in arrays):
            raise ValueError("a negative sum")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SEEN", seen.reshape(1, 1))]) for array in arrays]
"""
CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "X" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "SEEN" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
WARMUP = """
model_warmup [
  { name: "zeros" batch_size: 3 inputs { key: "X" value { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } } },
  { name: "file" batch_size: 1 count: 2
    inputs { key: "X" value { data_type: TYPE_FP32 dims: [ 2 ] input_data_file: "pair" } } },
  { name: "random" batch_size: 1 inputs { key: "X" value { data_type: TYPE_FP32 dims: [ 2 ] random_data: true } } }
]
"""


@pytest.fixture(scope="module")
def warm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("warm")
    for name, pair in (("warm", [3, 4]), ("cold", [-3, 1])):
        add_model(repository / name, pair)
    with ServerProcess(
        "--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false", repository=repository
    ) as process:
        yield process


def add_model(model: Path, pair: Sequence[float]) -> None:
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(REMEMBERS)
    (model / "config.pbtxt").write_text(CONFIG + WARMUP)
    (model / "warmup").mkdir()
    (model / "warmup" / "pair").write_bytes(np.array(pair, np.float32).tobytes())


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_model_has_run_its_samples_before_the_first_request(warm_server: ServerProcess, protocol: str) -> None:
    """Zeros, a file and random values, in this order; they are in no statistics."""
    with Client(protocol, warm_server.addresses[protocol]) as client:
        client.raw.load_model("warm")
        before = client.json("get_inference_statistics", "warm")["model_stats"][0]
        (told,) = client.infer("warm", {"X": np.ones((1, 2), np.float32)})["SEEN"].reshape(-1)
        zeros, first, second, random = json.loads(told)[:4]
        assert zeros == [3, 0.0], "three requests of one row in one execution"
        assert first == second == [1, 7.0]
        assert random[0] == 1
        assert 0 < random[1] < 2
        after = client.json("get_inference_statistics", "warm")["model_stats"][0]
        assert int(after["inference_count"]) == int(before.get("inference_count", 0)) + 1
        assert int(after["execution_count"]) == len(json.loads(told)) - 4 + 1


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_failed_warm_up_fails_the_load(warm_server: ServerProcess, protocol: str) -> None:
    with Client(protocol, warm_server.addresses[protocol]) as client:
        assert client.is_ready("cold") is False
        with pytest.raises(InferenceServerException, match=r"failed to run warmup sample 'file': .*a negative sum"):
            client.raw.load_model("cold")
        assert client.is_ready("warm") is True
