"""A server as SageMaker runs it: by variables, over HTTP, with one model and with many."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.repository import add_add_sub
from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess, eventually

QUIET = ("--allow-http=false", "--allow-grpc=false", "--allow-metrics=false", "--allow-sagemaker=true")
BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size="
TARGET = "X-Amzn-SageMaker-Target-Model"
ROW = np.arange(16, dtype=np.float32)
JSON = json.dumps(
    {
        "inputs": [
            {"name": name, "datatype": "FP32", "shape": [1, 16], "data": ROW.tolist()} for name in ("INPUT0", "INPUT1")
        ]
    }
).encode()
BINARY_JSON = json.dumps(
    {
        "inputs": [
            {"name": name, "datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
            for name in ("INPUT0", "INPUT1")
        ],
        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
    }
).encode()
# Loads when a file is there.
GATED = """
import os, time

class TritonPythonModel:
    def initialize(self, args):
        while not os.path.exists({gate!r}):
            time.sleep(0.02)

    def execute(self, requests):
        return []
"""
# Fails as frameworks do that want too much memory.
FAILING = """
class TritonPythonModel:
    def execute(self, requests):
        raise MemoryError("cannot allocate")
"""
LINES = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy().item())
            for number in range(count):
                tensor = pb_utils.Tensor("NUMBER", np.array([number], np.int32))
                sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
LINES_CONFIG = """
backend: "python"
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
"""


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    content_type: str


@dataclass(frozen=True)
class Endpoint:
    address: str

    def ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection(self.address, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, path, body or None, dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, response.read(), response.headers.get("content-type", ""))
        finally:
            connection.close()

    def load(self, model_hash: str, url: Path, target: str) -> int:
        body = json.dumps({"model_name": model_hash, "url": str(url)}).encode()
        return self.ask("POST", "/models", body, {TARGET: target}).status


@contextmanager
def served(*flags: str, repository: Path, environment: Mapping[str, str] | None = None) -> Iterator[Endpoint]:
    words = [f"--model-repository={repository}", "--sagemaker-port=0", *QUIET, *flags]
    with ServerProcess(command=words, environment=environment) as server:
        yield Endpoint(server.wait_for_line(r'Started Sagemaker HTTPService at ([^\s"]+)').group(1))


def add_python_model(folder: Path, code: str, config: str = 'backend: "python"\n') -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(code)
    (folder / "config.pbtxt").write_text(config)


def test_health_is_told_before_the_model_is_loaded(tmp_path: Path) -> None:
    """SageMaker asks from the first second on: 400 until the model is there, then 200."""
    gate = tmp_path / "gate"
    add_python_model(tmp_path / "models" / "gated", GATED.format(gate=str(gate)))
    words = [f"--model-repository={tmp_path / 'models'}", "--sagemaker-port=0", *QUIET]
    with ServerProcess(command=words) as server:
        address = server.wait_for_line(r'Listening, and not ready.*Sagemaker HTTPService at ([^\s",]+)').group(1)
        endpoint = Endpoint(address)
        assert endpoint.ask("GET", "/ping").status == 400
        gate.touch()
        assert eventually(lambda: endpoint.ask("GET", "/ping").status == 200)


def test_invocations_of_one_model(tmp_path: Path) -> None:
    add_add_sub(tmp_path / "add_sub", versions=(1,))
    with served(repository=tmp_path, environment={"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "add_sub"}) as endpoint:
        answer = endpoint.ask("POST", "/invocations", JSON, {"content-type": "application/json"})
        assert answer.status == 200
        assert json.loads(answer.body)["outputs"][0]["data"] == (2 * ROW).tolist()
        media_type = {"content-type": f"{BINARY}{len(BINARY_JSON)}"}
        answer = endpoint.ask("POST", "/invocations", BINARY_JSON + 2 * ROW.tobytes(), media_type)
        assert answer.content_type.startswith(BINARY)
        size = int(answer.content_type.removeprefix(BINARY))
        assert np.array_equal(np.frombuffer(answer.body[size:], np.float32), 2 * ROW)
        assert endpoint.ask("POST", "/invocations", b"{}").status == 400
        assert endpoint.ask("GET", "/v2/health/ready").status == 400


@pytest.mark.parametrize("inference_type", ["generate", "generate_stream"])
def test_invocations_that_generate(tmp_path: Path, inference_type: str) -> None:
    add_python_model(tmp_path / "lines", LINES, LINES_CONFIG)
    environment = {
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "lines",
        "SAGEMAKER_TRITON_INFERENCE_TYPE": inference_type,
    }
    with served(repository=tmp_path, environment=environment) as endpoint:
        count = 3 if inference_type == "generate_stream" else 1
        answer = endpoint.ask("POST", "/invocations", json.dumps({"COUNT": count}).encode())
        assert answer.status == 200
        if inference_type == "generate":
            assert answer.content_type == "application/json"
            assert json.loads(answer.body)["NUMBER"] == 0
        else:
            assert answer.content_type == "text/event-stream; charset=utf-8"
            events = [json.loads(line[6:]) for line in answer.body.splitlines() if line]
            assert [event["NUMBER"] for event in events] == [0, 1, 2]


@pytest.fixture
def hosted(tmp_path: Path) -> Path:
    """What SageMaker unpacks archives to: a model at the root, one in a folder, and an ensemble beside its models."""
    root = tmp_path / "hosted"
    add_add_sub(root / "aa11" / "model", versions=(1,))
    add_add_sub(root / "bb22" / "model" / "add_sub", versions=(2,))
    add_python_model(root / "cc33" / "model" / "memory", FAILING, LINES_CONFIG.partition("model_transaction")[0])
    (tmp_path / "empty").mkdir()
    return root


def test_many_models(tmp_path: Path, hosted: Path) -> None:
    """Loaded, listed, invoked, and unloaded by name."""
    flags = (
        "--model-control-mode=explicit",
        "--model-namespacing=true",
        "--sagemaker-ping-mode=live",
        f"--sagemaker-models-directory={hosted}",
    )
    with served(*flags, repository=tmp_path / "empty") as endpoint:
        assert endpoint.ask("GET", "/ping").status == 200
        assert json.loads(endpoint.ask("GET", "/models").body) == {"models": []}
        assert endpoint.load("aa11", hosted / "aa11" / "model", "sum.tar.gz") == 200
        assert endpoint.load("bb22", hosted / "bb22" / "model", "team/other.tar.gz") == 200
        assert endpoint.load("aa11", hosted / "aa11" / "model", "sum.tar.gz") == 409
        assert endpoint.load("dd44", hosted / "dd44" / "model", "missing.tar.gz") == 400
        listed = json.loads(endpoint.ask("GET", "/models").body)["models"]
        assert listed == [
            {"modelName": "aa11", "modelUrl": str(hosted / "aa11")},
            {"modelName": "bb22", "modelUrl": str(hosted / "bb22" / "model")},
        ]
        assert json.loads(endpoint.ask("GET", "/models/bb22").body) == listed[1]
        assert endpoint.ask("GET", "/models/dd44").status == 404
        answer = endpoint.ask("POST", "/models/aa11/invoke", JSON, {TARGET: "sum.tar.gz"})
        assert json.loads(answer.body)["model_name"] == "sum.tar.gz"
        answer = endpoint.ask("POST", "/models/bb22/invoke", JSON, {TARGET: "team/other.tar.gz"})
        assert json.loads(answer.body)["model_version"] == "2"
        assert endpoint.ask("POST", "/models/aa11/invoke", b"{}").status == 400
        assert endpoint.ask("POST", "/models/dd44/invoke", JSON).status == 404
        assert endpoint.ask("DELETE", "/models/aa11").status == 200
        assert endpoint.ask("DELETE", "/models/aa11").status == 404
        assert endpoint.ask("POST", "/models/aa11/invoke", JSON).status == 404
        assert endpoint.load("aa11", hosted / "aa11" / "model", "sum.tar.gz") == 200
        assert endpoint.load("cc33", hosted / "cc33" / "model", "memory.tar.gz") == 200
        body = b'{"inputs":[{"name":"COUNT","datatype":"INT32","shape":[1],"data":[1]}]}'
        assert endpoint.ask("POST", "/models/cc33/invoke", body).status == 507


def test_memory_pressure(tmp_path: Path, hosted: Path) -> None:
    """A model that the budget has no room for is refused with 507 while the others are in use; when SageMaker has
    unloaded one it is loaded."""
    for name in ("aa11/model", "bb22/model/add_sub"):
        with (hosted / name / "config.pbtxt").open("a") as config:
            config.write('\nparameters { key: "memory_bytes" value { string_value: "100" } }\n')
    add_python_model(
        hosted / "ee55" / "model",
        (Path(__file__).parent / "models" / "slow" / "1" / "model.py").read_text(),
        (Path(__file__).parent / "models" / "slow" / "config.pbtxt").read_text()
        + '\nparameters { key: "memory_bytes" value { string_value: "100" } }\n',
    )
    flags = (
        "--model-control-mode=explicit",
        "--sagemaker-ping-mode=live",
        f"--sagemaker-models-directory={hosted}",
        "--model-memory-budget=150",
    )
    with served(*flags, repository=tmp_path / "empty") as endpoint:
        assert endpoint.load("ee55", hosted / "ee55" / "model", "slow") == 200
        rows = [("SECONDS", "FP32", 4), ("VALUE", "INT64", 7)]
        tensors = [{"name": name, "datatype": kind, "shape": [1], "data": [value]} for name, kind, value in rows]
        body = json.dumps({"inputs": tensors}).encode()
        answers: list[Answer] = []
        asking = threading.Thread(target=lambda: answers.append(endpoint.ask("POST", "/models/ee55/invoke", body)))
        asking.start()
        statuses = []
        while asking.is_alive():
            statuses.append(endpoint.load("aa11", hosted / "aa11" / "model", "sum"))
            if statuses[-1] == 200:  # before the request came, or after it ended
                endpoint.ask("DELETE", "/models/aa11")
        asking.join()
        assert answers[0].status == 200
        assert 507 in statuses
        assert set(statuses) <= {200, 507}
        assert endpoint.ask("DELETE", "/models/ee55").status == 200
        assert endpoint.load("aa11", hosted / "aa11" / "model", "sum") == 200


def test_serve_is_the_containers_program(tmp_path: Path) -> None:
    """It says what is wrong with what it is given."""
    if Path("/opt/ml/model").exists():
        pytest.skip("this machine has a model at SageMaker's place")
    with ServerProcess(module="trioton.sagemaker_serve", command=["serve"]) as server:
        assert server.wait() == 1
        assert "ERROR: No model found in model repository." in server.log


def test_serve_with_many_models(tmp_path: Path) -> None:
    environment = {"SAGEMAKER_MULTI_MODEL": "true", "SAGEMAKER_BIND_TO_PORT": "0"}
    with ServerProcess(module="trioton.container", command=["serve"], environment=environment) as server:
        endpoint = Endpoint(server.wait_for_line(r'Started Sagemaker HTTPService at ([^\s"]+)').group(1))
        assert endpoint.ask("GET", "/ping").status == 200
        assert json.loads(endpoint.ask("GET", "/models").body) == {"models": []}
