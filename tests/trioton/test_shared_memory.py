"""Regions of shared memory in a whole server: whoever has been answered can unregister them, and they go."""

from __future__ import annotations

import gc
import queue
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import trio
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException, shared_memory

from tests.e2e.repository import save
from trioton.flags.fields import read_arguments, rows
from trioton.server import Server, open_server
from trioton.service_names import address_text
from trioton.settings import Settings

pytestmark = pytest.mark.slow

AT_ONCE = 6
SIZES = {"small": 64, "large": 300_000}  # elements; the latter are moved by a thread
MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(r, "X").as_numpy() * 2)])
            for r in requests
        ]
"""
FAILING = MODEL.replace("* 2", "@ 'no'")
CALLING = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceRequest(model_name="worker", inputs=r.inputs(), requested_output_names=["Y"]).exec()
            for r in requests
        ]
"""
DECOUPLED = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            doubled = pb_utils.get_input_tensor_by_name(request, "X").as_numpy() * 2
            response = pb_utils.InferenceResponse([pb_utils.Tensor("Y", doubled)])
            request.get_response_sender().send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
TENSORS = """
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
"""
BATCHED = "max_batch_size: 4 dynamic_batching { }"
ISOLATION = 'parameters { key: "ISOLATION" value { string_value: "%s" } }'
CONFIGS = {
    "worker": "",
    "batched": BATCHED,
    "two_instances": "instance_group { count: 2 }",
    "in_loop": ISOLATION % "in_loop",
    "in_process": ISOLATION % "in_process",
    "limited": 'instance_group { rate_limiter { resources { name: "R" count: 1 } } }',
    "sequence": "max_batch_size: 4 sequence_batching { oldest { max_candidate_sequences: 8 } }",
    "cached": "response_cache { enable: true }",
    "failing": "",
    "failing_in_loop": ISOLATION % "in_loop",
    "calling": "",
    "decoupled": "model_transaction_policy { decoupled: true }",
}
CODE = {"decoupled": DECOUPLED, "failing": FAILING, "failing_in_loop": FAILING, "calling": CALLING}
ENSEMBLE = """
platform: "ensemble"
ensemble_scheduling { step {
    model_name: "%s" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }
} }
"""

ENSEMBLES = {"ensemble": "worker", "failing_ensemble": "failing"}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, config in CONFIGS.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.py").write_text(CODE.get(name, MODEL))
        (tmp_path / name / "config.pbtxt").write_text(f'backend: "python"\n{config}\n{TENSORS}')
    for name, step in ENSEMBLES.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(ENSEMBLE % step + TENSORS)
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "config.pbtxt").write_text(f'backend: "onnxruntime"\n{TENSORS}')
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "XY")
    save([helper.make_node("Add", ["X", "X"], ["Y"])], [x], [y], tmp_path / "onnx" / "1" / "model.onnx")
    return tmp_path


def settings(repository: Path) -> Settings:
    ports = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")
    flags = ("--allow-client-shm=true", "--backend-config=python,allow-in-process=true", "--rate-limit=execution_count")
    local = ("--http-address=127.0.0.1", "--grpc-address=127.0.0.1")
    everything = (f"--model-repository={repository}", "--cache-config=local,size=10000000", *local, *ports, *flags)
    return Settings(**read_arguments(rows(Settings), everything))


class Caller:
    """Asks for one model, `AT_ONCE` requests of its own region each, and keeps its connections open."""

    def __init__(self, server: Server, model: str, elements: int) -> None:
        self.model = model
        self.elements = elements
        self.values = np.random.default_rng(1).random((AT_ONCE, 1, elements), np.float32)
        self.http = triton_http.InferenceServerClient(address_text(server.addresses["http"]), concurrency=AT_ONCE)
        self.grpc = triton_grpc.InferenceServerClient(address_text(server.addresses["grpc"]))
        self.segments: list[Any] = []
        self.answers: queue.Queue[Any] = queue.Queue()
        self.grpc.start_stream(self.hear)

    def hear(self, result: Any, error: Any) -> None:
        self.answers.put(error or result)

    def close(self) -> None:
        self.grpc.stop_stream()
        self.grpc.close()
        self.http.close()

    def check(self, ask: Ask) -> None:
        """Have all regions used and unregistered, twice, by the same names."""
        for _ in range(2):
            self.segments = [self._register(number) for number in range(AT_ONCE)]
            try:
                ask(self, [0])
                ask(self, range(AT_ONCE))
                self.grpc.unregister_system_shared_memory()
                assert self._regions_after_a_moment() == []
            finally:
                for segment in self.segments:
                    shared_memory.destroy_shared_memory_region(segment)

    def _regions_after_a_moment(self) -> list[str]:
        """A thread of the server's may still be on its way back from the last request."""
        for _ in range(500):
            if not (found := list(self.grpc.get_system_shared_memory_status().regions)):
                break
            time.sleep(0.01)
        return found

    def _register(self, number: int) -> Any:
        """A region for an input, and an output behind it."""
        name, size = f"region_{number}", 4 * self.elements
        segment = shared_memory.create_shared_memory_region(name, f"/trioton_test_{uuid.uuid4().hex}", 2 * size)
        shared_memory.set_shared_memory_region(segment, [self.values[number]])
        self.grpc.register_system_shared_memory(name, segment._shm_key, 2 * size)
        return segment

    def arguments(self, client: Any, number: int) -> dict[str, Any]:
        shape = [1, self.elements] if self.model in ("batched", "sequence") else [self.elements]
        given = client.InferInput("X", shape, "FP32")
        given.set_shared_memory(f"region_{number}", 4 * self.elements)
        found: dict[str, Any] = {"model_name": self.model, "inputs": [given], "request_id": str(number)}
        if self.model == "sequence":
            found |= {"sequence_id": number + 1, "sequence_start": True, "sequence_end": True}
        if number % 2:
            wanted = client.InferRequestedOutput("Y")
            wanted.set_shared_memory(f"region_{number}", 4 * self.elements, offset=4 * self.elements)
            found["outputs"] = [wanted]
        return found

    def check_answers(self, count: int) -> None:
        for _ in range(count):
            answer = self.answers.get(timeout=30)
            self.check_answer(answer, None if isinstance(answer, Exception) else int(answer.get_response().id))

    def check_answer(self, answer: Any, number: int | None) -> None:
        if self.model.startswith("failing"):
            assert isinstance(answer, InferenceServerException)
            return
        assert number is not None, answer
        expected = 2 * self.values[number].ravel()
        if number % 2:
            segment, size = self.segments[number], 4 * self.elements
            found = shared_memory.get_contents_as_numpy(segment, np.float32, expected.shape, offset=size)
        else:
            found = answer.as_numpy("Y").ravel()
        np.testing.assert_array_equal(found, expected)


def by_http(caller: Caller, numbers: Sequence[int]) -> None:
    asked = [caller.http.async_infer(**caller.arguments(triton_http, number)) for number in numbers]
    for number, one in zip(numbers, asked, strict=True):
        answer: Any
        try:
            answer = one.get_result()
        except InferenceServerException as error:
            answer = error
        caller.check_answer(answer, number)


def by_grpc(caller: Caller, numbers: Sequence[int]) -> None:
    for number in numbers:
        caller.grpc.async_infer(callback=caller.hear, **caller.arguments(triton_grpc, number))
    caller.check_answers(len(numbers))


def by_stream(caller: Caller, numbers: Sequence[int]) -> None:
    for number in numbers:
        caller.grpc.async_stream_infer(**caller.arguments(triton_grpc, number))
    caller.check_answers(len(numbers))


Ask: TypeAlias = Callable[[Caller, Sequence[int]], None]
ASKS = {"http": by_http, "grpc": by_grpc, "stream": by_stream}


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Nothing may wait for the collector of cycles."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("size", SIZES)
async def test_regions_go_when_they_are_unregistered(repository: Path, size: str) -> None:
    """The last batch of each instance, and the last request of a stream or a connection, keep none of them."""
    async with open_server(settings(repository)) as server:
        for model in (*CONFIGS, *ENSEMBLES, "onnx"):
            for name, ask in ASKS.items():
                if model == "decoupled" and name != "stream":
                    continue
                caller = Caller(server, model, SIZES[size])
                try:
                    await trio.to_thread.run_sync(caller.check, ask)
                except AssertionError as error:
                    raise AssertionError(f"{model} by {name}") from error
                finally:
                    await trio.to_thread.run_sync(caller.close)
