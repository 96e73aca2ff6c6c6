"""A server as Vertex AI runs it: by variables alone, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.repository import add_add_sub
from tests.e2e.server_process import ServerProcess, eventually
from tests.e2e.test_sagemaker import BINARY_JSON, GATED, JSON, ROW, Answer, Endpoint, add_python_model

HEALTH, PREDICT = "/v1/endpoints/7/deployedModels/8", "/v1/endpoints/7/deployedModels/8:predict"
BINARY = "application/vnd.vertex-ai-triton.binary+json;json-header-size="


def variables(repository: Path) -> dict[str, str]:
    return {
        "AIP_MODE": "PREDICTION",
        "AIP_HTTP_PORT": "0",
        "AIP_HEALTH_ROUTE": HEALTH,
        "AIP_PREDICT_ROUTE": PREDICT,
        "AIP_STORAGE_URI": str(repository),
    }


def vertex(repository: Path, *flags: str) -> ServerProcess:
    words = ["--metrics-port=0", "--metrics-address=127.0.0.1", *flags]
    return ServerProcess(module="trioton.container", command=words, environment=variables(repository))


def redirected(endpoint: Endpoint, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
    return endpoint.ask("POST", PREDICT, body, {"X-Vertex-Ai-Triton-Redirect": path, **(headers or {})})


def test_predictions_by_the_only_model(tmp_path: Path) -> None:
    add_add_sub(tmp_path / "add_sub", versions=(1,))
    with vertex(tmp_path) as server:
        endpoint = Endpoint(server.wait_for_line(r'Started Vertex AI HTTPService at ([^\s"]+)').group(1))
        assert "Started HTTPService" not in server.log
        assert "GRPCInferenceService" not in server.log
        assert endpoint.ask("GET", HEALTH).status == 200
        answer = endpoint.ask("POST", PREDICT, JSON)
        assert json.loads(answer.body)["outputs"][0]["data"] == (2 * ROW).tolist()
        media_type = {"content-type": f"{BINARY}{len(BINARY_JSON)}"}
        answer = endpoint.ask("POST", PREDICT, BINARY_JSON + 2 * ROW.tobytes(), media_type)
        assert (answer.status, answer.content_type) == (200, "application/octet-stream")
        assert np.array_equal(np.frombuffer(answer.body[-64:], np.float32), 2 * ROW)
        assert json.loads(redirected(endpoint, "v2/models/add_sub/infer", JSON).body)["model_name"] == "add_sub"
        assert b"nv_inference_request_success" in redirected(endpoint, "metrics").body
        assert json.loads(redirected(endpoint, "v2/models/add_sub/stats").body)["model_stats"][0]["name"] == "add_sub"
        assert redirected(endpoint, "v2/repository/models/add_sub/unload", b"{}").status == 403
        assert redirected(endpoint, "v2/logging").status == 400


def test_health_is_told_before_the_model_is_loaded(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    add_python_model(tmp_path / "models" / "gated", GATED.format(gate=str(gate)))
    with vertex(tmp_path / "models") as server:
        address = server.wait_for_line(r'Listening, and not ready.*Vertex AI HTTPService at ([^\s",]+)').group(1)
        endpoint = Endpoint(address)
        assert endpoint.ask("GET", HEALTH).status == 400
        assert endpoint.ask("POST", PREDICT, JSON).status == 503
        gate.touch()
        assert eventually(lambda: endpoint.ask("GET", HEALTH).status == 200)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([], "Expect the model repository contains only a single model if default model is not specified"),
        (["--vertex-ai-default-model=c"], "Expect the default model 'c' is loaded"),
    ],
)
def test_what_has_no_default_model_does_not_start(tmp_path: Path, flags: list[str], text: str) -> None:
    add_add_sub(tmp_path / "a", versions=(1,))
    add_add_sub(tmp_path / "b", versions=(1,))
    with vertex(tmp_path, *flags) as server:
        assert server.wait() == 1
        assert f"failed to start Vertex AI service: Invalid argument - {text}" in server.log
