"""Vertex AI's endpoint, called without a socket: its two routes, and every redirect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from protocol.access.control import AccessControl
from protocol.access.restricted import HTTP_API, RestrictedApis
from protocol.core import ModelIndex
from protocol.errors import Unavailable
from protocol.http.cloud.vertex_ai import VertexAI, VertexAISettings
from protocol.http.settings import HttpSettings
from protocol.metrics_text import MetricsText
from protocol.sync.sliced import Sliced
from tests.protocol.http.asgi import Answer, call
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import make_services

HEALTH, PREDICT = "/v1/endpoints/1/deployedModels/2", "/v1/endpoints/1/deployedModels/2:predict"
BINARY = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
VALUES = b"\0\0\x80?" * 4
ROW = {"name": "IN", "datatype": "FP32", "shape": [1, 4]}
JSON = json.dumps({"inputs": [{**ROW, "data": [1, 2, 3, 4]}]}).encode()
BINARY_JSON = json.dumps(
    {
        "inputs": [{**ROW, "parameters": {"binary_data_size": 16}}],
        "parameters": {"binary_data_output": True},
    }
).encode()


def make_app(
    core: FakeCore | None = None, default_model: str = "echo", access: AccessControl | None = None
) -> VertexAI:
    services = replace(make_services(core, access=access), metrics=MetricsText(up))
    return VertexAI(services, HttpSettings(), VertexAISettings(PREDICT, HEALTH, default_model))


def up(is_openmetrics: bool) -> Sliced[list[bytes]]:
    yield
    return [b"up 1\n"]


async def redirected(path: str, app: VertexAI | None = None, body: bytes = b"", **headers: str) -> Answer:
    return await call(app or make_app(), "POST", PREDICT, body, {"X-Vertex-Ai-Triton-Redirect": path, **headers})


async def test_health_is_readiness() -> None:
    core = FakeCore(ready=False)
    assert (await call(make_app(core), "GET", HEALTH)).status == 400
    core.ready = True
    assert (await call(make_app(core), "GET", HEALTH)).status == 200
    core.exiting = True
    assert (await call(make_app(core), "GET", HEALTH)).status == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", HEALTH, 405),
        ("GET", PREDICT, 405),
        ("GET", "/v2/health/ready", 400),
        ("POST", "/v2/models/echo/infer", 400),
        ("GET", "/metrics", 400),
        ("GET", HEALTH + "/", 400),
        ("GET", "/v1/endpoints/1/deployedModelsX2", 400),
    ],
)
async def test_there_are_two_routes(method: str, path: str, status: int) -> None:
    """They are no patterns."""
    assert (await call(make_app(), method, path)).status == status


async def test_a_prediction_is_inference() -> None:
    answer = await call(make_app(), "POST", PREDICT, JSON)
    assert (answer.status, answer.json["model_name"]) == (200, "echo")
    assert answer.json["outputs"][0]["data"] == [1.0, 2.0, 3.0, 4.0]
    answer = await call(make_app(), "POST", PREDICT, b'{"inputs": []')
    assert answer.status == 400


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": f"{BINARY}{len(BINARY_JSON)}"},
        {"content-type": "application/octet-stream", "inference-header-content-length": str(len(BINARY_JSON))},
    ],
)
async def test_binary_tensors(headers: dict[str, str]) -> None:
    """They are announced by the media type or by HTTP's own header; the answer has the latter."""
    answer = await call(make_app(), "POST", PREDICT, BINARY_JSON + VALUES, {**headers, "accept-encoding": "gzip"})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/octet-stream")
    assert "content-encoding" not in answer.headers
    size = int(answer.headers["inference-header-content-length"])
    assert answer.body[size:] == VALUES


async def test_media_types_that_cannot_be() -> None:
    for size in ("x", "-1", "99999999999", "1000"):
        answer = await call(make_app(), "POST", PREDICT, b"{}", {"content-type": f"{BINARY}{size}"})
        assert (answer.status, "inference header size" in answer.error) == (400, True)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("metrics", "up 1"),
        ("v2", '"name":"trioton"'),
        ("v2/health/live", '"live":true'),
        ("v2/health/ready", '"ready":true'),
        ("v2/models/stats", '"model_stats"'),
        ("v2/models/echo", '"name":"echo"'),
        ("v2/models/echo/versions/1", '"name":"echo"'),
        ("v2/models/echo/ready", '"ready":true'),
        ("v2/models/echo/config", '"max_batch_size"'),
        ("v2/models/echo/stats", '"model_stats"'),
        ("v2/models/echo/versions/1/stats", '"model_stats"'),
        ("v2/repository/index", '"name":"echo"'),
        ("v2/systemsharedmemory/status", "[]"),
        ("v2/cudasharedmemory/status", "[]"),
    ],
)
async def test_redirects(path: str, text: str) -> None:
    answer = await redirected(path)
    assert answer.status == 200
    assert text in answer.body.decode()


async def test_a_redirect_to_inference() -> None:
    app = make_app(default_model="other")
    for path in ("v2/models/echo/infer", "v2/models/echo/versions/1/infer"):
        assert (await redirected(path, app, JSON)).json["model_name"] == "echo"
    media_type = {"content-type": f"{BINARY}{len(BINARY_JSON)}"}
    answer = await redirected("v2/models/echo/infer", app, BINARY_JSON + VALUES, **media_type)
    assert answer.status == 200
    assert (await redirected("v2/models/nowhere/infer", app, JSON)).status == 404


@pytest.mark.parametrize(
    "path",
    [
        "v2/repository/models/echo/load",
        "v2/repository/models/echo/unload",
        "v2/systemsharedmemory/region/r/register",
        "v2/systemsharedmemory/region/r/unregister",
        "v2/systemsharedmemory/unregister",
        "v2/cudasharedmemory/region/r/register",
        "v2/cudasharedmemory/unregister",
    ],
)
async def test_what_would_change_the_server_is_forbidden(path: str) -> None:
    core = FakeCore()
    assert (await redirected(path, make_app(core), b"{}")).status == 403
    assert core.calls == []


@pytest.mark.parametrize(
    "path",
    ["", "/v2", "nowhere", "v2/", "v2/logging", "v2/trace/setting", "v1/models", HEALTH[1:], "v2/../metrics", "é"],
)
async def test_other_redirects(path: str) -> None:
    answer = await redirected(path)
    assert (answer.status, answer.body) == (400, b"")


async def test_restrictions_of_http_hold_for_what_is_redirected_to() -> None:
    restricted = RestrictedApis.parse(["metadata,metrics:key=a"], HTTP_API)
    app = make_app(access=AccessControl(restricted))
    assert (await redirected("v2", app)).status == 403
    assert (await redirected("metrics", app)).status == 403
    assert (await redirected("v2", app, key="a")).status == 200
    assert (await call(app, "POST", PREDICT, JSON)).status == 200
    app = make_app(access=AccessControl(RestrictedApis.parse(["inference:key=a"], HTTP_API)))
    assert (await call(app, "POST", PREDICT, JSON)).status == 403
    assert (await redirected("v2", app)).status == 200


class OneModel(FakeCore):
    """It has these models, once it has started."""

    names: Sequence[str] | None = None

    async def repository_index(self, *, ready: bool = False) -> Sequence[ModelIndex]:
        assert ready
        if self.names is None:
            raise Unavailable("Server starting")
        return [ModelIndex(name, version, "READY") for name in self.names for version in ("1", "2")]


async def test_without_a_default_model_the_only_one_is_asked() -> None:
    core = OneModel()
    app = make_app(core, default_model="")
    assert (await call(app, "POST", PREDICT, JSON)).status == 404, "it is asked for again"
    core.names = ("echo",)
    assert (await call(app, "POST", PREDICT, JSON)).json["model_name"] == "echo"
    core.names = ("echo", "other")
    assert (await call(app, "POST", PREDICT, JSON)).json["model_name"] == "echo", "it stays so"
    assert (await call(make_app(core, default_model=""), "POST", PREDICT, JSON)).status == 404
