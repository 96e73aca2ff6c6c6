"""A server with more models than its memory budget has room for, under load from real clients: no request fails."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.client import Client, add_sub_inputs, slow_inputs
from tests.e2e.repository import add_add_sub, copy_python_model
from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess, eventually
from tests.e2e.test_metrics import scrape, values

SIZE = 100
ROOM = 250  # for two of them
CLIENTS = 2  # of each protocol
REQUESTS = 20  # of each client

CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            call = pb_utils.InferenceRequest(
                model_name="add_3", requested_output_names=["OUTPUT0"], inputs=request.inputs()
            )
            answer = call.exec()
            if answer.has_error():
                raise pb_utils.TritonModelException(answer.error().message())
            responses.append(pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(answer, "OUTPUT0")]))
        return responses
"""
TENSORS = """
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }, { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] } ]
"""
# 2 · INPUT0: the sum and the difference, added.
ENSEMBLE = f"""
platform: "ensemble"
max_batch_size: 8
{TENSORS}
ensemble_scheduling {{ step [
  {{ model_name: "add_0" model_version: -1
    input_map {{ key: "INPUT0" value: "INPUT0" }} input_map {{ key: "INPUT1" value: "INPUT1" }}
    output_map {{ key: "OUTPUT0" value: "sum" }} output_map {{ key: "OUTPUT1" value: "difference" }} }},
  {{ model_name: "add_1" model_version: -1
    input_map {{ key: "INPUT0" value: "sum" }} input_map {{ key: "INPUT1" value: "difference" }}
    output_map {{ key: "OUTPUT0" value: "OUTPUT0" }} }}
] }}
"""


def state_size(model: Path) -> None:
    with (model / "config.pbtxt").open("a") as config:
        config.write(f'\nparameters {{ key: "memory_bytes" value {{ string_value: "{SIZE}" }} }}\n')


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Four of ONNX, a model.py, another one that calls an ONNX model, and an ensemble of two."""
    for number in range(4):
        add_add_sub(tmp_path / f"add_{number}", versions=(1,))
    copy_python_model("slow", tmp_path)
    (tmp_path / "caller" / "1").mkdir(parents=True)
    (tmp_path / "caller" / "1" / "model.py").write_text(CALLER)
    (tmp_path / "caller" / "config.pbtxt").write_text(f'backend: "python"\nmax_batch_size: 8\n{TENSORS}')
    for model in tmp_path.iterdir():
        state_size(model)
    (tmp_path / "both" / "1").mkdir(parents=True)
    (tmp_path / "both" / "config.pbtxt").write_text(ENSEMBLE)
    return tmp_path


class Load:
    """Clients that ask for all models, in an order of their own; `outcomes` counts how each request went."""

    def __init__(self, server: ServerProcess) -> None:
        self.outcomes: Counter[str] = Counter()
        self._server = server
        self._lock = threading.Lock()

    def run(self, requests: int) -> None:
        with ThreadPoolExecutor(2 * CLIENTS) as pool:
            each = [(protocol, seed) for protocol in ("http", "grpc") for seed in range(CLIENTS)]
            running = [pool.submit(self._ask, protocol, seed, requests) for protocol, seed in each]
            for future in running:
                future.result(10 * TIMEOUT_SECONDS)

    def _ask(self, protocol: str, seed: int, requests: int) -> None:
        chosen = random.Random(seed)
        # Workers take seconds to start: most of the load is for models that need none.
        asks: list[Callable[[Client, int], bool]] = [*[self._add] * 6, self._slow, self._caller, self._both]
        with Client(protocol, self._server.addresses[protocol]) as client:
            for number in range(requests):
                ask = chosen.choice(asks)
                try:
                    outcome = "right" if ask(client, chosen.randrange(4)) else f"{ask.__name__} {number} was wrong"
                except Exception as error:
                    outcome = f"{ask.__name__}: {error}"
                with self._lock:
                    self.outcomes[outcome] += 1

    def _add(self, client: Client, number: int) -> bool:
        inputs = add_sub_inputs(seed=number)
        answer = client.infer(f"add_{number}", inputs)["OUTPUT0"]
        return np.array_equal(answer, inputs["INPUT0"] + inputs["INPUT1"])

    def _slow(self, client: Client, number: int) -> bool:
        return bool(client.infer("slow", slow_inputs(number, 0.01))["VALUE"][0] == number)

    def _caller(self, client: Client, number: int) -> bool:
        inputs = add_sub_inputs(seed=number)
        answer = client.infer("caller", inputs)["OUTPUT0"]
        return np.array_equal(answer, inputs["INPUT0"] + inputs["INPUT1"])

    def _both(self, client: Client, number: int) -> bool:
        inputs = add_sub_inputs(seed=number)
        return np.allclose(client.infer("both", inputs)["OUTPUT0"], 2 * inputs["INPUT0"])


def metric(server: ServerProcess, name: str) -> float:
    """The sum over all models."""
    lines = [line for line in scrape(server).splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_no_request_fails(models: Path) -> None:
    with ServerProcess(f"--model-memory-budget={ROOM}", repository=models) as server:
        load = Load(server)
        load.run(REQUESTS)
        assert load.outcomes == {"right": 2 * CLIENTS * REQUESTS}
        assert metric(server, "trioton_model_evictions_total") > 10
        assert metric(server, "trioton_model_demand_loads_total") > 10
        assert metric(server, "trioton_model_memory_waiting_requests") == 0
        assert eventually(lambda: metric(server, "trioton_model_memory_used_bytes") <= ROOM)
        with Client("http", server.addresses["http"]) as client:
            assert client.raw.is_server_ready()
            index = {entry["name"]: entry for entry in client.raw.get_model_repository_index()}
            assert all(client.is_ready(name) for name in index)
            ready = {name for name, entry in index.items() if entry["state"] == "READY"}
            assert "both" in ready  # an ensemble holds nothing
            assert len(ready) == 3
            assert {index[name]["reason"] for name in index.keys() - ready} == {
                "unloaded for the memory budget; the next request loads it again"
            }
        counted = sum(values(server, f"add_{number}")["nv_inference_request_success"] for number in range(4))
        assert counted >= load.outcomes["right"] / 2  # counters outlive an unload


def test_a_worker_goes_with_its_model(models: Path) -> None:
    """Measured, a model.py holds what its workers do; one byte of budget leaves room for one model at a time."""
    for name in ("slow", "caller"):
        config = models / name / "config.pbtxt"
        config.write_text(config.read_text().replace(f'string_value: "{SIZE}"', 'string_value: ""'))
    flags = ("--model-memory-budget=1", "--model-control-mode=explicit", "--load-model=slow", "--load-model=add_0")
    with (
        ServerProcess(*flags, repository=models) as server,
        Client("grpc", server.addresses["grpc"]) as client,
    ):
        assert client.infer("slow", slow_inputs(3, 0))["VALUE"][0] == 3
        assert eventually(lambda: len(server.workers()) == 2)
        assert eventually(lambda: metric(server, "trioton_model_memory_bytes") > 1_000_000)
        assert client.infer("add_0", add_sub_inputs())["OUTPUT0"].shape == (1, 16)
        assert eventually(lambda: not server.workers())
        assert eventually(lambda: metric(server, "trioton_model_memory_bytes") == SIZE)
        assert client.infer("slow", slow_inputs(4, 0))["VALUE"][0] == 4
        client.raw.unload_model("slow")
        assert eventually(lambda: not server.workers())
        assert eventually(lambda: not client.is_ready("slow"))
