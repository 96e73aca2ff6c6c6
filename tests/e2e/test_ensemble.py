"""Ensembles over real clients: a chain, branches, a stream, errors by step, and the load that brings all they need."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Client, add_sub_inputs, outputs_of, status_of, tensors
from tests.e2e.repository import add_add_sub, copy_python_model, save
from tests.e2e.server_process import ServerProcess, eventually
from tests.e2e.test_metrics import values

PATIENCE = 30

# Step 1 gets the sum and the difference of step 0, so the outputs are twice the inputs.
CHAIN = """
platform: "ensemble" max_batch_size: 8
input [ { name: "A" data_type: TYPE_FP32 dims: [ 16 ] }, { name: "B" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "TWICE_A" data_type: TYPE_FP32 dims: [ 16 ] }, { name: "TWICE_B" data_type: TYPE_FP32 dims: [ 16 ] } ]
ensemble_scheduling { step [
  { model_name: "add_sub" model_version: -1
    input_map [ { key: "INPUT0" value: "A" }, { key: "INPUT1" value: "B" } ]
    output_map [ { key: "OUTPUT0" value: "sum" }, { key: "OUTPUT1" value: "difference" } ] },
  { model_name: "add_sub" model_version: -1
    input_map [ { key: "INPUT0" value: "sum" }, { key: "INPUT1" value: "difference" } ]
    output_map [ { key: "OUTPUT0" value: "TWICE_A" }, { key: "OUTPUT1" value: "TWICE_B" } ] } ] }
"""

# What is large is halved, what is not is doubled; the large ones are named too.
BRANCH = """
platform: "ensemble"
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "LARGE" data_type: TYPE_FP32 dims: [ 1 ] } ]
ensemble_scheduling { step [
  { model_name: "is_large" model_version: -1
    input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "is_large" } },
  { model_name: "halve" model_version: -1
    input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "Y" } },
  { model_name: "double" model_version: -1
    input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "Y" } },
  { model_name: "halve" model_version: -1
    input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "LARGE" } } ] }
parameters { key: "condition:1" value: { string_value: "is_large" } }
parameters { key: "condition:double" value: { string_value: "!is_large" } }
parameters { key: "condition:3" value: { string_value: "is_large" } }
"""

STREAM = """
platform: "ensemble"
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
ensemble_scheduling { step [
  { model_name: "count" model_version: -1
    input_map { key: "COUNT" value: "COUNT" } output_map { key: "OUT" value: "number" } },
  { model_name: "double" model_version: -1
    input_map { key: "IN" value: "number" } output_map { key: "OUT" value: "Y" } } ] }
"""

NESTED = STREAM.replace('"count" model', '"stream" model').replace(
    'key: "OUT" value: "number"', 'key: "Y" value: "number"'
)

FAILING = """
platform: "ensemble"
input [ { name: "ACTION" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "NOTHING" data_type: TYPE_INT64 dims: [ 1 ] } ]
ensemble_scheduling { step [ { model_name: "failing" model_version: -1
  input_map { key: "ACTION" value: "ACTION" } output_map { key: "NOTHING" value: "NOTHING" } } ] }
"""

BROKEN = CHAIN.replace('key: "INPUT1" value: "difference"', 'key: "INPUT7" value: "difference"')

COUNTING = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    '''As many responses as COUNT says: 0, 1, 2, ...; the final flag comes by itself, with the last if COUNT < 0.'''

    def execute(self, requests):
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            for number in range(abs(count)):
                out = pb_utils.Tensor("OUT", np.array([number], np.float32))
                is_last = count < 0 and number == abs(count) - 1
                sender.send(pb_utils.InferenceResponse([out]), flags=final if is_last else 0)
            if count >= 0:
                sender.send(flags=final)
"""
COUNTING_CONFIG = """
backend: "python" model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""


def add_onnx(model: Path, operator: str, constant: float, output_type: int = TensorProto.FLOAT) -> None:
    """OUT = IN <operator> constant, for one number."""
    value = helper.make_node("Constant", [], ["c"], value_float=constant)
    node = helper.make_node(operator, ["IN", "c"], ["OUT"])
    taken = [helper.make_tensor_value_info("IN", TensorProto.FLOAT, [1])]
    save([value, node], taken, [helper.make_tensor_value_info("OUT", output_type, [1])], model / "1" / "model.onnx")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ensembles")
    add_add_sub(directory / "add_sub", versions=(1,))
    add_onnx(directory / "double", "Mul", 2.0)
    add_onnx(directory / "halve", "Mul", 0.5)
    add_onnx(directory / "is_large", "Greater", 100.0, TensorProto.BOOL)
    copy_python_model("failing", directory)
    (directory / "count" / "1").mkdir(parents=True)
    (directory / "count" / "1" / "model.py").write_text(COUNTING)
    (directory / "count" / "config.pbtxt").write_text(COUNTING_CONFIG)
    ensembles = {
        "chain": CHAIN,
        "branch": BRANCH,
        "stream": STREAM,
        "nested": NESTED,
        "fails": FAILING,
        "broken": BROKEN,
    }
    for name, config in ensembles.items():
        (directory / name / "1").mkdir(parents=True)
        (directory / name / "config.pbtxt").write_text(config)
    return directory


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[ServerProcess]:
    """Told to load ensembles only."""
    flags = [f"--load-model={name}" for name in ("chain", "branch", "stream", "nested", "fails")]
    with ServerProcess("--model-control-mode=explicit", *flags, repository=repository) as process:
        assert len(process.addresses) == 3
        yield process


@pytest.fixture(scope="module", params=["http", "grpc"])
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(request.param, server.addresses[request.param]) as made:
        yield made


@pytest.fixture(scope="module")
def grpc(server: ServerProcess) -> Iterator[Client]:
    with Client("grpc", server.addresses["grpc"]) as made:
        yield made


def index(client: Client) -> dict[str, str]:
    told = client.json("get_model_repository_index")
    return {entry["name"]: entry.get("state", "") for entry in (told if isinstance(told, list) else told["models"])}


def test_what_an_ensemble_needs_is_loaded_with_it(client: Client) -> None:
    states = index(client)
    needed = {
        "add_sub",
        "branch",
        "chain",
        "count",
        "double",
        "failing",
        "fails",
        "halve",
        "is_large",
        "nested",
        "stream",
    }
    assert {states[name] for name in needed} == {"READY"}
    assert states["broken"] != "READY"
    assert client.raw.is_server_ready()
    assert client.is_ready("chain")


def test_a_chain_answers(client: Client) -> None:
    inputs = add_sub_inputs(3)
    outputs = client.infer("chain", {"A": inputs["INPUT0"], "B": inputs["INPUT1"]})
    np.testing.assert_allclose(outputs["TWICE_A"], 2 * inputs["INPUT0"], rtol=1e-5)
    np.testing.assert_allclose(outputs["TWICE_B"], 2 * inputs["INPUT1"], rtol=1e-5)
    (only,) = client.infer("chain", {"A": inputs["INPUT0"], "B": inputs["INPUT1"]}, outputs=["TWICE_B"]).items()
    assert only[0] == "TWICE_B"


@pytest.mark.parametrize(
    "sequence", [{}, {"sequence_id": 7, "sequence_start": True}, {"sequence_id": 2**63 - 1, "sequence_end": True}]
)
def test_its_response_says_what_the_request_said_of_its_sequence(client: Client, sequence: dict[str, Any]) -> None:
    inputs = add_sub_inputs(1)
    made = client.tensors({"A": inputs["INPUT0"], "B": inputs["INPUT1"]})
    response = client.raw.infer("chain", made, **sequence).get_response()
    if client.protocol == "http":
        told = response["parameters"]
    else:
        told = {
            name: getattr(parameter, parameter.WhichOneof("parameter_choice"))
            for name, parameter in response.parameters.items()
        }
    names = ("sequence_id", "sequence_start", "sequence_end")
    assert {name: told[name] for name in names} == dict(zip(names, (0, False, False), strict=True)) | sequence


def test_it_is_described_and_counted_as_other_models_are(server: ServerProcess, client: Client) -> None:
    metadata = client.json("get_model_metadata", "chain")
    assert metadata["platform"] == "ensemble"
    assert [tensor["name"] for tensor in metadata["outputs"]] == ["TWICE_A", "TWICE_B"]
    config = client.json("get_model_config", "chain")
    config = config.get("config", config)
    assert [step["model_name"] for step in config["ensemble_scheduling"]["step"]] == ["add_sub", "add_sub"]
    before, before_step = values(server, "chain", version="1"), values(server, "add_sub", version="1")
    inputs = add_sub_inputs(2)
    client.infer("chain", {"A": inputs["INPUT0"], "B": inputs["INPUT1"]})
    after, after_step = values(server, "chain", version="1"), values(server, "add_sub", version="1")
    assert after["nv_inference_request_success"] - before["nv_inference_request_success"] == 1
    assert after["nv_inference_count"] - before["nv_inference_count"] == 2
    assert after_step["nv_inference_request_success"] - before_step["nv_inference_request_success"] == 2
    (statistics,) = client.json("get_inference_statistics", "chain")["model_stats"]
    assert (statistics["name"], statistics["version"]) == ("chain", "1")
    assert int(statistics["inference_stats"]["compute_infer"]["ns"]) > 0


@pytest.mark.parametrize(("x", "expected"), [(7.0, {"Y": 14.0}), (700.0, {"Y": 350.0, "LARGE": 350.0})])
def test_a_condition_chooses_the_branch(client: Client, x: float, expected: dict[str, float]) -> None:
    outputs = client.infer("branch", {"X": np.array([x], np.float32)})
    assert {name: float(array[0]) for name, array in outputs.items()} == expected


@pytest.mark.parametrize(
    ("action", "status", "words"),
    [
        (b"error", "INVALID_ARGUMENT", "in ensemble 'fails', refused on purpose (step 0, model 'failing')"),
        (b"raise", "INTERNAL", "raised on purpose"),
    ],
)
def test_an_error_says_which_step_and_has_its_status(client: Client, action: bytes, status: str, words: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("fails", {"ACTION": np.array([action], np.object_)})
    assert words in caught.value.message()
    assert caught.value.message().startswith("in ensemble 'fails', ")
    assert status_of(caught.value) == status


def test_a_load_that_cannot_be_says_why(client: Client) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.raw.load_model("broken")
    assert caught.value.message() == (
        "failed to load 'broken': Invalid argument: in ensemble broken, ensemble tensor difference is mapping to "
        "non-existing input INPUT7 in model add_sub"
    )
    assert index(client)["broken"] == "UNAVAILABLE"
    client.raw.unload_model("broken")


def stream(grpc: Client, model: str, count: int, *, empty_final: bool) -> list[list[float]]:
    """What each response has, up to the one that is marked final."""
    answers: queue.Queue[tuple[Any, InferenceServerException | None]] = queue.Queue()
    grpc.raw.start_stream(lambda result, error: answers.put((result, error)))
    got: list[list[float]] = []
    try:
        made = tensors(grpc.api, {"COUNT": np.array([count], np.int32)})
        grpc.raw.async_stream_infer(model, made, request_id="s", enable_empty_final_response=empty_final)
        while True:
            result, error = answers.get(timeout=PATIENCE)
            assert error is None
            response = result.get_response()
            assert (response.id, response.model_name) == ("s", model)
            got.append([float(array[0]) for array in outputs_of(result).values()])
            if response.parameters["triton_final_response"].bool_param:
                break
    finally:
        grpc.raw.stop_stream()
    assert answers.empty()
    return got


def test_a_decoupled_step_makes_a_stream(grpc: Client) -> None:
    """The flag of the step comes by itself: it may be known when the last response leaves, or later."""
    got = stream(grpc, "stream", 5, empty_final=True)
    assert [number for numbers in got for number in numbers] == [0, 2, 4, 6, 8]
    assert got[-1] in ([8.0], [])


@pytest.mark.parametrize("empty_final", [False, True])
@pytest.mark.parametrize(("model", "factor"), [("count", 1), ("stream", 2), ("nested", 4)])
def test_the_last_response_says_that_it_is_the_last(grpc: Client, model: str, factor: int, empty_final: bool) -> None:
    """A client that did not ask for empty responses knows by nothing else that its request has ended."""
    got = stream(grpc, model, -4, empty_final=empty_final)
    assert got == [[factor * number] for number in range(4)]


def test_unloading_takes_along_what_was_loaded_for_the_ensemble(client: Client) -> None:
    client.raw.unload_model("chain", unload_dependents=True)
    assert eventually(lambda: index(client)["add_sub"] == "UNAVAILABLE")
    assert index(client)["chain"] == "UNAVAILABLE"
    assert index(client)["double"] == "READY"
    client.raw.load_model("chain")
    assert index(client)["add_sub"] == "READY"


def test_an_ensemble_may_come_with_the_load_call(client: Client) -> None:
    tensor = {"data_type": "TYPE_FP32", "dims": [1]}
    steps = [("double", "X", "T"), ("double", "T", "Y")]
    config = {
        "platform": "ensemble",
        "input": [{"name": "X", **tensor}],
        "output": [{"name": "Y", **tensor}],
        "ensemble_scheduling": {
            "step": [
                {"model_name": model, "model_version": -1, "input_map": {"IN": taken}, "output_map": {"OUT": given}}
                for model, taken, given in steps
            ]
        },
    }
    name = f"given_{client.protocol}"
    client.raw.load_model(name, config=json.dumps(config), files={"file:1/empty": b""})
    assert float(client.infer(name, {"X": np.array([3], np.float32)})["Y"][0]) == 12
    client.raw.unload_model(name)
