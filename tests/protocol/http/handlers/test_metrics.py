"""`/metrics` on the HTTP port."""

from __future__ import annotations

from dataclasses import replace

from protocol.access.control import AccessControl
from protocol.access.restricted import HTTP_API, RestrictedApis
from protocol.http.app import HttpApp
from protocol.http.route_table import RouteTable
from protocol.http.routes import route_table
from protocol.http.settings import HttpSettings, Interface
from protocol.metrics_text import MetricsText
from protocol.sync.sliced import Sliced
from tests.protocol.http.asgi import call
from tests.protocol.http.fake_services import make_services

TABLE = route_table(Interface.ALL, has_metrics=True)


def render(is_openmetrics: bool) -> Sliced[list[bytes]]:
    yield
    return [b"nv_inference_count 1\n", *([b"# EOF\n"] if is_openmetrics else [])]


def app(access: AccessControl | None = None, table: RouteTable = TABLE) -> HttpApp:
    services = replace(make_services(access=access or AccessControl()), metrics=MetricsText(render))
    return HttpApp(services, HttpSettings(metrics=table is TABLE), table)


async def test_it_is_the_page_of_the_metrics_port() -> None:
    answer = await call(app(), "GET", "/metrics")
    assert (answer.status, answer.body) == (200, b"nv_inference_count 1\n")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    answer = await call(app(), "GET", "/metrics", headers={"accept": "application/openmetrics-text"})
    assert answer.body.endswith(b"# EOF\n")


async def test_it_can_be_left_out() -> None:
    answer = await call(app(table=route_table(Interface.ALL)), "GET", "/metrics")
    assert (answer.status, answer.error) == (404, "Not Found")


async def test_it_can_be_restricted() -> None:
    access = AccessControl(RestrictedApis.parse(["metrics:key=secret"], HTTP_API))
    answer = await call(app(access), "GET", "/metrics")
    assert (answer.status, answer.error) == (403, "This API is restricted, expecting header 'key'")
    assert (await call(app(access), "GET", "/metrics", headers={"key": "secret"})).status == 200
    assert (await call(app(access), "GET", "/v2/health/live")).status == 200


async def test_only_get_is_taken() -> None:
    answer = await call(app(), "POST", "/metrics", b"x")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
