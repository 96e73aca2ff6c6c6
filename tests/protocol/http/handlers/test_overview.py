"""`GET /`: where things are, for people and for programs."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from protocol.access.control import AccessControl
from protocol.access.restricted import HTTP_API, RestrictedApis, Restriction
from protocol.http.app import HttpApp
from protocol.http.handlers.overview import PATHS
from protocol.http.routes import route_table
from protocol.http.settings import HttpSettings
from tests.protocol.http.asgi import call
from tests.protocol.http.fake_services import make_services

ADDRESSES = {"grpc": ("0.0.0.0", 8001), "http": ("0.0.0.0", 8000), "metrics": ("0.0.0.0", 8002)}
APP = HttpApp(replace(make_services(), addresses=ADDRESSES), HttpSettings())


class Links(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str | None] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name == "href"]


@pytest.mark.parametrize("headers", [{}, {"accept": "*/*"}, {"accept": "application/json"}])
async def test_for_programs(headers: dict[str, str]) -> None:
    answer = await call(APP, "GET", "/", headers=headers)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.headers["vary"] == "accept"
    assert answer.json == {
        "name": "trioton",
        "version": "0.1",
        "paths": dict(PATHS),
        "grpc": {"port": 8001},
        "metrics": {"port": 8002, "path": "/metrics"},
    }


async def test_for_people() -> None:
    """Every link leads somewhere on this server, also behind a proxy that adds a prefix."""
    answer = await call(APP, "GET", "/", headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    text = answer.body.decode()
    links = Links(text).found
    assert "v2/docs" in links
    for link in links:
        route_table().find(f"/{link}".encode())
    assert "port 8002, GET /metrics" in text
    assert "<h1>trioton 0.1</h1>" in text


@pytest.mark.parametrize("operation", PATHS.values())
def test_every_path_is_there(operation: str) -> None:
    method, _, path = operation.partition(" ")
    assert route_table().find(path.replace("{model_name}", "m").encode())[0].route(method).path == path


async def test_a_server_whose_metadata_is_restricted() -> None:
    restriction = Restriction.parse("metadata:key=secret", HTTP_API)
    services = make_services(access=AccessControl(RestrictedApis([restriction], HTTP_API)))
    app = HttpApp(services, HttpSettings())
    assert (await call(app, "GET", "/")).status == (await call(app, "GET", "/v2")).status == 403
    assert (await call(app, "GET", "/", headers={"key": "secret"})).status == 200
