"""What the looking handlers answer, called through the application."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.core import InferResponseStatistics, MemoryUsage, StatisticDuration
from protocol.http.app import HttpApp
from protocol.http.settings import HttpSettings
from tests.protocol.http.asgi import Answer, call
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import make_services


def make_app(**core: Any) -> HttpApp:
    return HttpApp(make_services(FakeCore(**core)), HttpSettings())


def named(answer: Answer) -> dict[str, str]:
    """What errors have beside."""
    return {"request_id": answer.headers["x-request-id"]}


@pytest.mark.parametrize("what", ["live", "ready"])
async def test_health(what: str) -> None:
    """200 or 400; 503 with the reason while the server stops. The body says it as the Open Inference Protocol does."""
    path = f"/v2/health/{what}"
    answer = await call(make_app(), "GET", path)
    assert (answer.status, answer.json) == (200, {what: True})
    answer = await call(make_app(**{what: False}), "GET", path)
    assert (answer.status, answer.json) == (400, {what: False, **named(answer)})
    answer = await call(make_app(exiting=True), "GET", path)
    assert (answer.status, answer.json) == (503, {"error": "Server exiting", what: False, **named(answer)})


async def test_model_ready() -> None:
    app = make_app()
    for path in ("/v2/models/echo/ready", "/v2/models/echo/versions/1/ready"):
        answer = await call(app, "GET", path)
        assert (answer.status, answer.json) == (200, {"name": "echo", "ready": True})
    answer = await call(app, "GET", "/v2/models/wait/ready")
    assert (answer.status, answer.json) == (
        400,
        {"error": "Model version not ready", "name": "wait", "ready": False, **named(answer)},
    )
    answer = await call(app, "GET", "/v2/models/echo/versions/7/ready")
    text = "Request for unknown model: 'echo' version 7 is not found"
    assert (answer.status, answer.json) == (404, {"error": text, "name": "echo", "ready": False, **named(answer)})


async def test_server_metadata() -> None:
    answer = await call(make_app(), "GET", "/v2")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == {
        "name": "trioton",
        "version": "0.1",
        "extensions": ["binary_tensor_data", "statistics"],
    }


async def test_model_metadata() -> None:
    answer = await call(make_app(), "GET", "/v2/models/echo")
    assert answer.json == {
        "name": "echo",
        "versions": ["1", "2"],
        "platform": "python",
        "inputs": [{"name": "IN", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "OUT_IN", "datatype": "FP32", "shape": [-1, 4]}],
    }


async def test_model_config() -> None:
    answer = await call(make_app(), "GET", "/v2/models/echo/versions/1/config")
    assert answer.json == {"name": "echo", "max_batch_size": 8, "backend": "python"}


@pytest.mark.parametrize("path", ["/v2/models/stats", "/v2/models/echo/stats", "/v2/models/echo/versions/1/stats"])
async def test_statistics(path: str) -> None:
    """Every member that Triton's answer has, each leaf a count and nanoseconds."""
    (entry,) = (await call(make_app(), "GET", path)).json["model_stats"]
    zero = {"count": 0, "ns": 0}
    names = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
    assert entry == {
        "name": "echo",
        "version": "1",
        "last_inference": 0,
        "inference_count": 3,
        "execution_count": 0,
        "inference_stats": dict.fromkeys(names, zero),
        "batch_stats": [],
        "response_stats": {},
        "memory_usage": [],
    }


async def test_statistics_of_responses_and_memory() -> None:
    counted = {
        "response_stats": {"0": InferResponseStatistics(success=StatisticDuration(2, 7))},
        "memory_usage": (MemoryUsage("GPU", 1, 2**33),),
    }
    app = make_app(counted=counted)
    (entry,) = (await call(app, "GET", "/v2/models/echo/stats")).json["model_stats"]
    zero = {"count": 0, "ns": 0}
    assert entry["response_stats"] == {
        "0": {
            "compute_infer": zero,
            "compute_output": zero,
            "success": {"count": 2, "ns": 7},
            "fail": zero,
            "empty_response": zero,
            "cancel": zero,
        }
    }
    assert entry["memory_usage"] == [{"type": "GPU", "id": 1, "byte_size": 2**33}]


@pytest.mark.parametrize("suffix", ["", "/ready", "/config", "/stats"])
async def test_unknown_models(suffix: str) -> None:
    answer = await call(make_app(), "GET", f"/v2/models/none{suffix}")
    assert (answer.status, answer.json["error"]) == (404, "Request for unknown model: 'none' is not found")


async def test_names_with_other_characters() -> None:
    assert (await call(make_app(), "GET", "/v2/models/with%20space/config")).json["name"] == "with space"
    assert (await call(make_app(), "GET", "/v2/models/gr%C3%B6%C3%9Fe/config")).json["name"] == "größe"
