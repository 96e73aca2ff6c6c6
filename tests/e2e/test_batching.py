"""The dynamic batcher of a running server: queue policies, priorities, ragged batches, shape rules, adaptivity."""

from __future__ import annotations

import json
import math
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from tests.e2e.client import Array, Client, status_of
from tests.e2e.repository import save
from tests.e2e.server_process import ServerProcess

# Runs until the file GATE is there, and tells when it began, on the clock that all processes of the machine share.
GATED = """
import os
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        began = time.monotonic()
        for request in requests:
            gate = pb_utils.get_input_tensor_by_name(request, "GATE").as_numpy()[0, 0]
            while not os.path.exists(gate):
                time.sleep(0.01)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("BEGAN", np.array([[began]]))]) for _ in requests]
"""
# Gives X back, and says what came in the batch: how many requests, and the length of the request's own row.
LENGTHS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            seen = np.array([[len(requests), x.shape[1]]], np.int32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x), pb_utils.Tensor("SEEN", seen)]))
        return responses
"""
GATED_CONFIG = """
backend: "python" max_batch_size: 1
input [ { name: "GATE" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "BEGAN" data_type: TYPE_FP64 dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
LENGTHS_CONFIG = """
backend: "python" max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] %s } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "SEEN" data_type: TYPE_INT32 dims: [ 2 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
ONNX_CONFIG = """
backend: "onnxruntime" max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] %s } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
# A batch goes when three requests are together; the delay is far longer than any test.
IN_THREES = "dynamic_batching { preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 60000000 }\n"
RAGGED = """
batch_input { kind: BATCH_ELEMENT_COUNT target_name: "COUNTS" data_type: TYPE_INT32 source_input: "X" }
batch_output { target_name: "Y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "X" }
"""
SHAPE_RULES = {
    "inputs": {"X": {"dims": {"0": {"buckets": [4, 8]}}, "pad_value": -1}},
    "outputs": {"Y": {"dims": {"0": {"input": "X"}}}},
}


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: {json.dumps(value)} }} }}\n'


def add_python(model: Path, source: str, config: str) -> None:
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(source)
    (model / "config.pbtxt").write_text(config)


def add_onnx(model: Path, config: str, *, shape: list[str], counts: bool) -> None:
    """Y = X + the length of COUNTS, or of the first dimension of X: how many requests, or rows, there were."""
    nodes = [
        helper.make_node("Shape", ["COUNTS" if counts else "X"], ["shape"], start=0, end=1),
        helper.make_node("Cast", ["shape"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["X", "number"], ["Y"]),
    ]
    inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, shape)]
    if counts:
        inputs.append(helper.make_tensor_value_info("COUNTS", TensorProto.INT32, ["requests"]))
    outputs = [helper.make_tensor_value_info("Y", TensorProto.FLOAT, shape)]
    save(nodes, inputs, outputs, model / "1" / "model.onnx")
    (model / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def batching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("batching")
    queue = (
        "dynamic_batching { default_queue_policy { max_queue_size: 2 allow_timeout_override: true "
        "default_timeout_microseconds: 60000000 } }"
    )
    add_python(repository / "queued", GATED, GATED_CONFIG + queue)
    levels = "dynamic_batching { priority_levels: 2 default_priority_level: 2 }"
    add_python(repository / "priorities", GATED, GATED_CONFIG + levels)
    ragged = "allow_ragged_batch: true"
    add_onnx(repository / "ragged", ONNX_CONFIG % ragged + RAGGED + IN_THREES, shape=["elements"], counts=True)
    add_python(repository / "ragged_python", LENGTHS, LENGTHS_CONFIG % ragged + IN_THREES)
    rules = parameter("shape_rules", json.dumps(SHAPE_RULES))
    add_onnx(repository / "padded", ONNX_CONFIG % "" + IN_THREES + rules, shape=["rows", "length"], counts=False)
    add_python(repository / "padded_python", LENGTHS, LENGTHS_CONFIG % "" + IN_THREES + rules)
    adaptive = parameter("adaptive_batching", "20000")
    config = ONNX_CONFIG % "" + "dynamic_batching { }\n"
    add_onnx(repository / "adaptive", config + adaptive, shape=["rows", "length"], counts=False)
    wrong = parameter("adaptive_batching", "soon") + parameter("shape_rules", "{}")
    add_onnx(repository / "wrong", config + wrong, shape=["rows", "length"], counts=False)
    with ServerProcess("--exit-on-error=false", "--strict-readiness=false", repository=repository) as process:
        yield process


@pytest.fixture(params=["http", "grpc"])
def client(batching: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(request.param, batching.addresses[request.param]) as made:
        yield made


class Calls:
    """Requests made at the same time, each over a connection of its own."""

    def __init__(self, server: ServerProcess, protocol: str) -> None:
        self._address = server.addresses[protocol]
        self._protocol = protocol
        self._pool = ThreadPoolExecutor(8)

    def __enter__(self) -> Calls:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def start(self, model: str, inputs: Mapping[str, Array], **more: Any) -> Future[dict[str, Array]]:
        def call() -> dict[str, Array]:
            with Client(self._protocol, self._address) as made:
                return made.infer(model, inputs, **more)

        return self._pool.submit(call)


def gate(path: Path) -> dict[str, Array]:
    return {"GATE": np.array([[str(path).encode()]], np.object_)}


def x(*values: float) -> dict[str, Array]:
    return {"X": np.array([values], np.float32)}


def metric(server: ServerProcess, name: str, **labels: str) -> float:
    with urllib.request.urlopen(f"http://{server.addresses['metrics']}/metrics") as answer:
        text = answer.read().decode()
    for line in text.splitlines():
        if line.startswith(f"{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            return float(line.rsplit(" ", 1)[1])
    return float("nan")


def wait_for_pending(server: ServerProcess, model: str, count: int, running: Future[Any]) -> None:
    """Until so many requests wait for an instance, which still runs another."""
    while metric(server, "nv_inference_pending_request_count", model=model) != count:
        assert not running.done(), running.exception()
        time.sleep(0.01)


def flushes(server: ServerProcess, model: str, reason: str) -> float:
    """Batches that have gone for it; it is not there before the first."""
    count = metric(server, "trioton_batch_flush_total", model=model, reason=reason)
    return 0.0 if math.isnan(count) else count


def wait_until_executing(server: ServerProcess, model: str, call: Future[Any]) -> None:
    """Until an instance has taken the one request that there is: more batches have gone than have ended."""
    reasons = ("full", "preferred", "timeout", "idle_instance", "shape")

    def gone() -> float:
        return sum(flushes(server, model, reason) for reason in reasons)

    while not gone() > metric(server, "nv_inference_exec_count", model=model):
        assert not call.done(), call.exception()
        time.sleep(0.01)


def test_a_full_queue_and_a_request_whose_time_is_over(batching: ServerProcess, client: Client, tmp_path: Path) -> None:
    """Both are refused with UNAVAILABLE while the instance is busy; what runs and what waits is answered."""
    opened = tmp_path / "gate"
    refusals = metric(batching, "nv_inference_request_failure", model="queued", reason="REJECTED")
    with Calls(batching, client.protocol) as calls:
        running = calls.start("queued", gate(opened))
        wait_until_executing(batching, "queued", running)
        with pytest.raises(InferenceServerException) as expired:
            client.infer("queued", gate(opened), timeout=100_000)
        waiting = [calls.start("queued", gate(opened)) for _ in range(2)]
        wait_for_pending(batching, "queued", 2, running)
        with pytest.raises(InferenceServerException) as full:
            client.infer("queued", gate(opened), request_id="r7")
        assert not running.done()
        opened.touch()
        assert [set(call.result()) for call in (running, *waiting)] == [{"BEGAN"}] * 3
    assert [status_of(caught.value) for caught in (full, expired)] == ["UNAVAILABLE"] * 2
    assert full.value.message() == "[request id: r7] Exceeds maximum queue size"
    assert expired.value.message() == "Request timeout expired"
    assert metric(batching, "nv_inference_request_failure", model="queued", reason="REJECTED") == refusals + 2


def test_a_high_priority_goes_first(batching: ServerProcess, client: Client, tmp_path: Path) -> None:
    opened = tmp_path / "gate"
    with Calls(batching, client.protocol) as calls:
        running = calls.start("priorities", gate(opened))
        wait_until_executing(batching, "priorities", running)
        low = calls.start("priorities", gate(opened))
        wait_for_pending(batching, "priorities", 1, running)
        high = calls.start("priorities", gate(opened), priority=1)
        wait_for_pending(batching, "priorities", 2, running)
        opened.touch()
        began = [float(call.result()["BEGAN"][0, 0]) for call in (running, high, low)]
    assert began == sorted(began)


@pytest.mark.parametrize("model", ["ragged", "padded"])
def test_requests_of_different_lengths_share_a_batch(batching: ServerProcess, client: Client, model: str) -> None:
    """Each gets its own length back, and the number of those that were together."""
    preferred = flushes(batching, model, "preferred")
    with Calls(batching, client.protocol) as calls:
        started = [calls.start(model, x(*range(length))) for length in (1, 3, 4)]
        for call, length in zip(started, (1, 3, 4), strict=True):
            np.testing.assert_array_equal(call.result()["Y"], [np.arange(length) + 3])
    assert flushes(batching, model, "preferred") == preferred + 1


@pytest.mark.parametrize(("model", "lengths"), [("ragged_python", (1, 3, 4)), ("padded_python", (4, 4, 4))])
def test_a_python_model_gets_the_requests_of_a_batch_one_by_one(
    batching: ServerProcess, client: Client, model: str, lengths: tuple[int, ...]
) -> None:
    """As they are where the input is ragged, padded where there are rules."""
    with Calls(batching, client.protocol) as calls:
        started = [calls.start(model, x(*range(length))) for length in (1, 3, 4)]
        for call, own, seen in zip(started, (1, 3, 4), lengths, strict=True):
            np.testing.assert_array_equal(call.result()["Y"], [np.arange(own)])
            assert call.result()["SEEN"].tolist() == [[3, seen]]


def test_a_request_past_the_largest_bucket_is_refused(client: Client) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("padded", x(*range(9)))
    assert status_of(caught.value) == "INVALID_ARGUMENT"
    assert "dimension 0 of input 'X' is 9, but the shape rules of its model allow at most 8" in caught.value.message()


def test_adaptive_batching_serves_and_a_wrong_target_is_named(client: Client) -> None:
    for _ in range(20):
        np.testing.assert_array_equal(client.infer("adaptive", x(1, 2))["Y"], [[2, 3]])
    answer = client.json("get_model_repository_index")
    models = answer["models"] if isinstance(answer, dict) else answer
    (reason,) = [model["reason"] for model in models if model["name"] == "wrong"]
    assert "model 'wrong', parameter 'adaptive_batching': expected 'p99_microseconds'" in reason
