"""Warm-up: what a model was given before it became ready, and what a failed one does to its load."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client
from tests.e2e.server_process import ServerProcess

# Replies with what the executions before this one were given: rows and sum of each.
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
    add_counting(repository / "dying", KINDS["decoupled"], "process")
    program = repository / "dying" / "1" / "model.py"
    program.write_text(program.read_text().replace("answers = []", "import os; os._exit(9)"))
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


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_death_in_the_warm_up_of_a_decoupled_model_fails_the_load(warm_server: ServerProcess, protocol: str) -> None:
    with Client(protocol, warm_server.addresses[protocol]) as client:
        with pytest.raises(
            InferenceServerException, match=r"model instance 'dying_0_0' died: its worker process exited with code 9"
        ):
            client.raw.load_model("dying")
        assert client.is_ready("warm") is True


ISOLATIONS = ("process", "threads", "fork", "in_process", "in_loop")
# Each is given its own sample; the model counts what it was given before its first client's request.
COUNTS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def answer(self):
        return pb_utils.InferenceResponse([pb_utils.Tensor("COUNT", np.full((1, 1), self.count, np.float32))])

    def execute(self, requests):
        answers = []
        for request in requests:
            answers.append(self.answer())
            self.count += 1
        if not DECOUPLED:
            return answers
        for request, response in zip(requests, answers):
            sender = request.get_response_sender()
            sender.send(response)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
KINDS = {
    "plain": "",
    "batching": "dynamic_batching { max_queue_delay_microseconds: 100 }",
    "decoupled": "model_transaction_policy { decoupled: true }",
    "direct": "sequence_batching { direct { } }",
    "oldest": "sequence_batching { oldest { max_candidate_sequences: 2 } }",
    "iterative": "sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 2 } }",
    "decoupled_oldest": "sequence_batching { oldest { max_candidate_sequences: 2 } } "
    "model_transaction_policy { decoupled: true }",
}


def add_counting(model: Path, fields: str, isolation: str) -> None:
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(f"DECOUPLED = {'decoupled: true' in fields}\n{COUNTS}")
    (model / "config.pbtxt").write_text(f"""
        backend: "python"
        max_batch_size: 4
        input [ {{ name: "X" data_type: TYPE_FP32 dims: [ 2 ] }} ]
        output [ {{ name: "COUNT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
        instance_group [ {{ count: 1 kind: KIND_CPU }} ]
        parameters {{ key: "ISOLATION" value {{ string_value: "{isolation}" }} }}
        {fields}
        model_warmup [ {{ name: "zeros" batch_size: 2 count: 3 inputs {{
          key: "X" value {{ data_type: TYPE_FP32 dims: [ 2 ] zero_data: true }} }} }} ]
    """)


def add_ensemble(model: Path, step: str) -> None:
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(f"""
        platform: "ensemble"
        max_batch_size: 4
        input [ {{ name: "X" data_type: TYPE_FP32 dims: [ 2 ] }} ]
        output [ {{ name: "COUNT" data_type: TYPE_FP32 dims: [ 1 ] }} ]
        ensemble_scheduling {{ step [ {{ model_name: "{step}" model_version: -1
          input_map {{ key: "X" value: "X" }} output_map {{ key: "COUNT" value: "COUNT" }} }} ] }}
    """)


def test_every_kind_of_model_is_warmed_up_in_every_isolation(tmp_path: Path) -> None:
    """The server starts, and each has run its samples: six requests."""
    kinds = [
        (kind, isolation)
        for kind in KINDS
        for isolation in ISOLATIONS
        if not (isolation == "in_loop" and kind.startswith("decoupled"))  # which is refused
    ]
    for kind, isolation in kinds:
        add_counting(tmp_path / f"{kind}-{isolation}", KINDS[kind], isolation)
    add_ensemble(tmp_path / "ensemble", "plain-process")
    flags = "--backend-config=python,allow-in-process=true"
    with (
        ServerProcess(flags, repository=tmp_path) as server,
        Client("grpc", server.addresses["grpc"]) as client,
    ):
        assert client.raw.is_server_ready()
        for name in [*(f"{kind}-{isolation}" for kind, isolation in kinds if "decoupled" not in kind), "ensemble"]:
            is_sequence = "direct" in name or "oldest" in name
            more: dict[str, Any] = (
                {"sequence_id": 7, "sequence_start": True, "sequence_end": True} if is_sequence else {}
            )
            count = client.infer(name, {"X": np.ones((1, 2), np.float32)}, **more)["COUNT"]
            assert count.item() == (7 if name == "ensemble" else 6), name  # the ensemble asks plain-process again
