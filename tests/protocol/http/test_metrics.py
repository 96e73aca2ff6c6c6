"""The metrics listener on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial

import httpx
import pytest
import trio

from protocol.access.control import AccessControl
from protocol.http.metrics import MetricsSettings, serve_metrics
from protocol.http.settings import ConnectionLimits
from protocol.limits.counter import LimitCounter
from tests.protocol.access.changing_keys import ChangingKeys


@dataclass
class Renderer:
    text: bytes = b"nv_inference_count 1\n"
    calls: int = 0
    stop: trio.Event = field(default_factory=trio.Event)

    def __call__(self) -> bytes:
        self.calls += 1
        if not self.text:
            raise ValueError("a defect")
        return self.text


@pytest.fixture
def renderer() -> Renderer:
    return Renderer()


@pytest.fixture
async def client(nursery: trio.Nursery, renderer: Renderer) -> AsyncIterator[httpx.AsyncClient]:
    host, port = await nursery.start(serve_metrics, renderer, MetricsSettings("127.0.0.1", 0), renderer.stop)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
        yield client


async def test_metrics_are_rendered_for_each_request(client: httpx.AsyncClient, renderer: Renderer) -> None:
    """Under either form of the path; a query is no part of it."""
    for path in ("/metrics", "/metrics/", "/metrics?name=x"):
        answer = await client.get(path)
        assert (answer.status_code, answer.content) == (200, renderer.text)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert renderer.calls == 3


async def test_other_methods_and_paths(client: httpx.AsyncClient, renderer: Renderer) -> None:
    answer = await client.post("/metrics", content=b"x" * 500_000)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert answer.json() == {"error": "Method Not Allowed"}
    answer = await client.get("/")
    assert (answer.status_code, answer.json()) == (404, {"error": "Not Found"})
    assert renderer.calls == 0
    answer = await client.head("/metrics")
    assert (answer.status_code, answer.content) == (200, b"")


async def test_a_defect_in_rendering(
    client: httpx.AsyncClient, renderer: Renderer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is answered, logged, and gone with the next request."""
    good, renderer.text = renderer.text, b""
    answer = await client.get("/metrics")
    assert (answer.status_code, answer.json()) == (500, {"error": "rendering the metrics failed: a defect"})
    assert "rendering the metrics failed" in caplog.text
    renderer.text = good
    assert (await client.get("/metrics")).status_code == 200


async def test_stopping(nursery: trio.Nursery, renderer: Renderer) -> None:
    async with trio.open_nursery() as serving:
        await serving.start(serve_metrics, renderer, MetricsSettings("127.0.0.1", 0), renderer.stop)
        renderer.stop.set()
        serving.cancel_scope.deadline = trio.current_time() + 10
    assert not serving.cancel_scope.cancelled_caught


# One reads metrics and another does not.
KEYS = """
[keys.reader]
key = "0123456789abcdef"
allow = ["metrics"]
[keys.other]
key = "fedcba9876543210"
allow = ["inference"]
"""


async def test_keys(nursery: trio.Nursery, renderer: Renderer) -> None:
    """Asked for before the method is looked at; an unknown path needs none."""
    access = AccessControl(keys=ChangingKeys(KEYS))
    serve = partial(serve_metrics, renderer, MetricsSettings("127.0.0.1", 0), renderer.stop, access=access)
    host, port = await nursery.start(serve)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
        answer = await client.post("/metrics")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert (await client.get("/")).status_code == 404
        for key, status in (("0123456789abcdef", 200), ("fedcba9876543210", 403), ("0123456789abcdeg", 401)):
            answer = await client.get("/metrics", headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == status
    assert renderer.calls == 1


async def test_limits(nursery: trio.Nursery, renderer: Renderer) -> None:
    """Those of every connection, counted apart from HTTP's."""
    counter = LimitCounter()
    connections = ConnectionLimits(max_connections=1, max_header_size=2000, header_timeout=0.05)
    settings = MetricsSettings("127.0.0.1", 0, connections)
    host, port = await nursery.start(partial(serve_metrics, renderer, settings, renderer.stop, limits=counter))
    async with await trio.open_tcp_stream(host, port) as slow:
        await slow.send_all(b"GET /metrics HT")
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
            assert (await client.get("/metrics")).status_code == 503
        assert (await slow.receive_some()).startswith(b"HTTP/1.1 408 ")
        while await slow.receive_some():
            pass
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
        assert (await client.get("/metrics", headers={"x": "y" * 3000})).status_code == 431
    assert counter.counts() == {
        ("metrics", "max_connections"): 1,
        ("metrics", "header_timeout"): 1,
        ("metrics", "max_header_size"): 1,
    }
    assert renderer.calls == 0
