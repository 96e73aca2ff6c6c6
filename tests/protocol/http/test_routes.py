"""The route table: every path of the reference, and none that only looks like one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.access.categories import Category
from protocol.errors import InvalidArgument, NotFound
from protocol.http.errors import MethodNotAllowed
from protocol.http.exchange import Handler
from protocol.http.handlers import metadata as handlers
from protocol.http.handlers import repository as repository_handlers
from protocol.http.handlers import settings as settings_handlers
from protocol.http.handlers.generate import generate_stream
from protocol.http.handlers.jobs.submit import generate_or_job, infer_or_job
from protocol.http.handlers.shared_memory import CUDA, SYSTEM
from protocol.http.route_table import RouteTable
from protocol.http.routes import ROUTES, route_table
from tests.protocol.http.fake_services import make_request

TABLE = route_table()
M = {"model_name": "m"}
MV = {"model_name": "m", "model_version": "12"}
R = {"region_name": "r"}


@pytest.mark.parametrize(
    ("method", "path", "handler", "parameters"),
    [
        ("GET", "/v2", handlers.server_metadata, {}),
        ("GET", "/v2/health/live", handlers.server_live, {}),
        ("GET", "/v2/health/ready", handlers.server_ready, {}),
        ("GET", "/v2/models/m", handlers.model_metadata, M),
        ("GET", "/v2/models/m/versions/12", handlers.model_metadata, MV),
        ("GET", "/v2/models/m/ready", handlers.model_ready, M),
        ("GET", "/v2/models/m/versions/12/ready", handlers.model_ready, MV),
        ("GET", "/v2/models/m/config", handlers.model_config, M),
        ("GET", "/v2/models/m/versions/12/config", handlers.model_config, MV),
        ("GET", "/v2/models/stats", handlers.all_statistics, {}),
        ("GET", "/v2/models/m/stats", handlers.model_statistics, M),
        ("GET", "/v2/models/m/versions/12/stats", handlers.model_statistics, MV),
        ("POST", "/v2/models/m/infer", infer_or_job, M),
        ("POST", "/v2/models/m/versions/12/infer", infer_or_job, MV),
        ("POST", "/v2/models/m/generate", generate_or_job, M),
        ("POST", "/v2/models/m/versions/12/generate", generate_or_job, MV),
        ("POST", "/v2/models/m/generate_stream", generate_stream, M),
        ("POST", "/v2/models/m/versions/12/generate_stream", generate_stream, MV),
        ("GET", "/v2/trace/setting", settings_handlers.trace_settings, {}),
        ("POST", "/v2/trace/setting", settings_handlers.update_trace_settings, {}),
        ("GET", "/v2/models/m/trace/setting", settings_handlers.trace_settings, M),
        ("POST", "/v2/models/m/trace/setting", settings_handlers.update_trace_settings, M),
        ("GET", "/v2/logging", settings_handlers.log_settings, {}),
        ("POST", "/v2/logging", settings_handlers.update_log_settings, {}),
        ("GET", "/v2/systemsharedmemory/status", SYSTEM.status, {}),
        ("GET", "/v2/systemsharedmemory/region/r/status", SYSTEM.status, R),
        ("POST", "/v2/systemsharedmemory/region/r/register", SYSTEM.register, R),
        ("POST", "/v2/systemsharedmemory/unregister", SYSTEM.unregister, {}),
        ("POST", "/v2/systemsharedmemory/region/r/unregister", SYSTEM.unregister, R),
        ("GET", "/v2/cudasharedmemory/status", CUDA.status, {}),
        ("GET", "/v2/cudasharedmemory/region/r/status", CUDA.status, R),
        ("POST", "/v2/cudasharedmemory/region/r/register", CUDA.register, R),
        ("POST", "/v2/cudasharedmemory/unregister", CUDA.unregister, {}),
        ("POST", "/v2/cudasharedmemory/region/r/unregister", CUDA.unregister, R),
        ("POST", "/v2/repository/index", repository_handlers.repository_index, {}),
        ("POST", "/v2/repository/r/index", repository_handlers.repository_index, {"repository_name": "r"}),
        ("POST", "/v2/repository/models/m/load", repository_handlers.load_model, M),
        ("POST", "/v2/repository/r/models/m/load", repository_handlers.load_model, {**M, "repository_name": "r"}),
        ("POST", "/v2/repository/models/m/unload", repository_handlers.unload_model, M),
        # A literal part goes first, but does not hide a longer path.
        ("POST", "/v2/models/stats/infer", infer_or_job, {"model_name": "stats"}),
        ("GET", "/v2/models/stats/stats", handlers.model_statistics, {"model_name": "stats"}),
        ("GET", "/v2/models/versions", handlers.model_metadata, {"model_name": "versions"}),
        ("POST", "/v2/repository/models/models/load", repository_handlers.load_model, {"model_name": "models"}),
        ("POST", "/v2/repository/models/index", repository_handlers.repository_index, {"repository_name": "models"}),
        # Names are percent-decoded, part by part.
        ("POST", "/v2/models/a%20b%2Fc%C3%A9/infer", infer_or_job, {"model_name": "a b/cé"}),
        ("GET", "/v2/models/%ff", handlers.model_metadata, {"model_name": "\ufffd"}),
        ("GET", "/v2/models/%2e%2e%2fetc%00", handlers.model_metadata, {"model_name": "../etc\0"}),
        # HEAD is answered as GET.
        ("HEAD", "/v2", handlers.server_metadata, {}),
        # The absolute form of a request's target.
        ("GET", "http://host:8000/v2/models/m", handlers.model_metadata, M),
        ("GET", "HTTPS://[::1]/v2", handlers.server_metadata, {}),
    ],
)
def test_paths(method: str, path: str, handler: Handler, parameters: dict[str, str]) -> None:
    endpoint, found = TABLE.find(path.encode())
    assert endpoint.route(method).handler is handler
    assert found == parameters


@pytest.mark.parametrize(
    "path",
    [
        "",
        "*",
        "/v2/",
        "/v1",
        "/v2/models",
        "/v2/models/",
        "/v2/models//infer",
        "/v2/models/m/",
        "/v2/models/m/infer/",
        "/v2/models/m/versions",
        "/v2/models/m/versions/",
        "/v2/models/m/versions/x",
        "/v2/models/m/versions/-1/infer",
        "/v2/models/m/versions/1.0/infer",
        "/v2/models/m/versions/%C2%B2/infer",
        "/v2/models/m/versions/1/trace/setting",
        "/v2/health",
        "/v2/health/LIVE",
        "/v2/repository/models/m",
        "/v2/systemsharedmemory/register",
        "/metrics",
        "http://host",
        "ftp://host/v2",
        "host/v2",
        "host:80",
        "/v2/models/m/%69nfer%2f",
    ],
)
def test_unknown_paths(path: str) -> None:
    with pytest.raises(NotFound, match=r"^Not Found$"):
        TABLE.find(path.encode())


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v2", ("GET", "HEAD")),
        ("GET", "/v2/models/m/infer", ("POST",)),
        ("HEAD", "/v2/models/m/infer", ("POST",)),
        ("DELETE", "/v2/logging", ("GET", "POST", "HEAD")),
        ("get", "/v2", ("GET", "HEAD")),
    ],
)
def test_wrong_methods(method: str, path: str, allowed: tuple[str, ...]) -> None:
    endpoint, _ = TABLE.find(path.encode())
    with pytest.raises(MethodNotAllowed) as caught:
        endpoint.route(method)
    assert caught.value.allowed == allowed
    assert caught.value.message == "Method Not Allowed"


def test_the_table_is_free_of_repetition() -> None:
    """Method and path name a route; each has a line for people."""
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
    assert all(route.summary for route in ROUTES)


@pytest.mark.parametrize(
    ("category", "paths"),
    [
        (Category.METADATA, ["/", "/v2", "/v2/models/m", "/v2/models/m/versions/1"]),
        (
            Category.HEALTH,
            ["/v2/health/live", "/v2/health/ready", "/v2/models/m/ready", "/v2/models/m/versions/1/ready"],
        ),
        (Category.MODEL_CONFIG, ["/v2/models/m/config"]),
        (
            Category.INFERENCE,
            ["/v2/models/m/infer", "/v2/models/m/generate", "/v2/models/m/versions/1/generate_stream"],
        ),
        (Category.STATISTICS, ["/v2/models/stats", "/v2/models/m/stats"]),
        (Category.TRACE, ["/v2/trace/setting", "/v2/models/m/trace/setting"]),
        (Category.LOGGING, ["/v2/logging"]),
        (Category.MODEL_REPOSITORY, ["/v2/repository/index", "/v2/repository/models/m/load"]),
        (Category.SHARED_MEMORY, ["/v2/systemsharedmemory/status", "/v2/cudasharedmemory/region/r/register"]),
    ],
)
def test_categories(category: Category, paths: list[str]) -> None:
    """As the reference's table has them."""
    assert {TABLE.find(path.encode())[0].category for path in paths} == {category}


def test_a_path_is_of_one_category() -> None:
    """It is checked before the method is looked at."""
    get = next(route for route in ROUTES if route.path == "/v2/logging" and route.method == "GET")
    with pytest.raises(ValueError, match="too many values"):
        RouteTable((get, replace(get, method="POST", category=Category.HEALTH)))


@pytest.mark.parametrize(("text", "version"), [(None, -1), ("0", 0), ("007", 7), ("9223372036854775807", 2**63 - 1)])
def test_versions(text: str | None, version: int) -> None:
    parameters = {} if text is None else {"model_version": text}
    assert make_request(path_parameters=parameters).model_version == version


@pytest.mark.parametrize("text", ["9223372036854775808", "9" * 20, "9" * 10_000])
def test_versions_past_64_bits(text: str) -> None:
    request = make_request(path_parameters={"model_version": text})
    with pytest.raises(InvalidArgument) as caught:
        _ = request.model_version
    assert caught.value.message == (
        f"failed to get model version from specified version string '{text[:64]}' (details: out of the range of a "
        f"64-bit integer), version should be an integral value > 0"
    )
