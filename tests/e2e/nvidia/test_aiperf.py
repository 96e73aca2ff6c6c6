"""AIPerf: inference and `generate_stream` by templates, without any OpenAI layer, and chats with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.engines.models import TINY, write_scripted
from tests.e2e.nvidia.programs import AIPERF, program, run
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.slow
TIMEOUT_SECONDS = 300.0
REQUESTS = 20
CONFIG = """
backend: "python"
input [ { name: "PROMPT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "TOKEN" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"
ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(request, "PROMPT").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TOKEN", text)]) for text in texts]
"""
WORDS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            text = pb_utils.get_input_tensor_by_name(request, "PROMPT").as_numpy().reshape(-1)[0].decode()
            for word in (text.split() or ["?"])[:5]:
                token = pb_utils.Tensor("TOKEN", np.array([f"{word} ".encode()], object))
                sender.send(pb_utils.InferenceResponse([token]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
INFER_TEMPLATE = '{"inputs": [{"name": "PROMPT", "datatype": "BYTES", "shape": [1], "data": [{{ text|tojson }}]}]}'
GENERATE_TEMPLATE = '{"PROMPT": {{ text|tojson }}}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    program(AIPERF)
    repository = tmp_path_factory.mktemp("aiperf")
    for name, code, more in (("same", ECHO, ""), ("words", WORDS, DECOUPLED)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(code)
        (repository / name / "config.pbtxt").write_text(CONFIG + more)
    write_scripted(repository)
    with ServerProcess(repository=repository) as started:
        started.addresses  # noqa: B018 (waits until it serves)
        yield started


def profile(server: ServerProcess, folder: Path, model: str, *words: object) -> dict[str, Any]:
    """Its report; metrics are read from the port of HTTP, where it looks by itself."""
    command = [program(AIPERF), "profile", "--model", model, "--url", f"http://{server.addresses['http']}", *words]
    command += ["--tokenizer", TINY, "--request-count", REQUESTS, "--concurrency", 2, "--isl", 16, "--osl", 8]
    command += ["--artifact-dir", folder / "artifacts", "--ui", "none", "--workers-max", 2]
    done = run(command, folder, TIMEOUT_SECONDS)
    assert done.returncode == 0
    (report,) = folder.glob("artifacts/**/profile_export_aiperf.json")
    told: dict[str, Any] = json.loads(report.read_text())
    return told


def test_inference_by_a_template(server: ServerProcess, tmp_path: Path) -> None:
    template = tmp_path / "infer.json"
    template.write_text(INFER_TEMPLATE)
    words = ["--endpoint-type", "template", "--endpoint", "/v2/models/same/infer"]
    extra = ["--extra-inputs", f"payload_template:{template}", "--extra-inputs", "response_field:outputs[0].data[0]"]
    told = profile(server, tmp_path, "same", *words, *extra)
    assert told["request_count"]["avg"] == REQUESTS
    assert told["request_latency"]["avg"] > 0
    (metrics,) = tmp_path.glob("artifacts/**/server_metrics_export.json")
    assert "nv_inference_request_success" in metrics.read_text()


def test_a_stream_by_a_template(server: ServerProcess, tmp_path: Path) -> None:
    template = tmp_path / "generate.json"
    template.write_text(GENERATE_TEMPLATE)
    words = ["--endpoint-type", "template", "--endpoint", "/v2/models/words/generate_stream", "--streaming"]
    extra = ["--extra-inputs", f"payload_template:{template}", "--extra-inputs", "response_field:TOKEN"]
    told = profile(server, tmp_path, "words", *words, *extra)
    assert told["request_count"]["avg"] == REQUESTS
    assert told["time_to_first_token"]["avg"] > 0
    assert told["inter_token_latency"]["avg"] > 0


def test_chats(server: ServerProcess, tmp_path: Path) -> None:
    told = profile(server, tmp_path, "echo", "--endpoint-type", "chat", "--streaming")
    assert told["request_count"]["avg"] == REQUESTS
    assert told["time_to_first_token"]["avg"] > 0
