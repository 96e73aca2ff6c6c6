"""The metrics listener on loopback."""

from __future__ import annotations

import time
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
from protocol.metrics_text import MetricsText
from protocol.sync.sliced import SLICE_SECONDS, Sliced
from tests.protocol.access.changing_keys import ChangingKeys


@dataclass
class Renderer:
    text: bytes = b"nv_inference_count 1\n"
    calls: int = 0
    stop: trio.Event = field(default_factory=trio.Event)
    slices: int = 1
    begun: trio.Event = field(default_factory=trio.Event)
    dropped: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.metrics = MetricsText(self._render)

    def _render(self, is_openmetrics: bool) -> Sliced[list[bytes]]:
        self.calls += 1
        self.begun.set()
        try:
            for _ in range(self.slices):
                if self.slices > 1:
                    time.sleep(SLICE_SECONDS)
                yield
        except GeneratorExit:
            self.dropped.set()
            raise
        if not self.text:
            raise ValueError("a defect")
        return [self.text, b"# EOF\n"] if is_openmetrics else [self.text]


@pytest.fixture
def renderer() -> Renderer:
    return Renderer()


@pytest.fixture
async def client(nursery: trio.Nursery, renderer: Renderer) -> AsyncIterator[httpx.AsyncClient]:
    host, port = await nursery.start(serve_metrics, renderer.metrics, MetricsSettings("127.0.0.1", 0), renderer.stop)
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
        yield client


async def test_metrics_are_rendered_for_each_request(client: httpx.AsyncClient, renderer: Renderer) -> None:
    """Under either form of the path; a query is no part of it."""
    for path in ("/metrics", "/metrics/", "/metrics?name=x"):
        answer = await client.get(path)
        assert (answer.status_code, answer.content) == (200, renderer.text)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert renderer.calls == 3


@pytest.mark.parametrize(
    ("accept", "is_openmetrics"),
    [
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2", True),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; version=0.0.1", True),
        ("text/plain;version=0.0.4", False),
        ("*/*", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.1,text/plain", False),
        ("application/openmetrics-text;q=x,text/plain", False),
        ("application/json", False),
        ("", False),
    ],
)
async def test_the_scraper_says_which_format(
    accept: str, is_openmetrics: bool, client: httpx.AsyncClient, renderer: Renderer
) -> None:
    answer = await client.get("/metrics", headers={"accept": accept})
    kind = "application/openmetrics-text; version=1.0.0" if is_openmetrics else "text/plain"
    assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
    assert answer.headers["vary"] == "accept, accept-encoding"
    assert answer.content == renderer.text + b"# EOF\n" * is_openmetrics


@pytest.mark.parametrize("coding", ["gzip", "deflate", "identity", "br"])
async def test_the_scraper_says_whether_it_is_compressed(
    coding: str, client: httpx.AsyncClient, renderer: Renderer
) -> None:
    """Whatever its size; in a coding that is not known it is not."""
    renderer.text *= 10_000
    answer = await client.get("/metrics", headers={"accept-encoding": coding})
    assert answer.content == renderer.text
    is_coded = coding in ("gzip", "deflate")
    assert answer.headers.get("content-encoding") == (coding if is_coded else None)
    assert (int(answer.headers["content-length"]) < len(renderer.text)) is is_coded


async def test_scrapes_at_the_same_time_share_one_rendering(client: httpx.AsyncClient, renderer: Renderer) -> None:
    renderer.slices = 50
    answers: list[bytes] = []

    async def scrape() -> None:
        answers.append((await client.get("/metrics")).content)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(scrape)
    assert answers == [renderer.text] * 5
    assert renderer.calls < 5


async def test_a_scraper_that_leaves_ends_the_rendering(nursery: trio.Nursery, renderer: Renderer) -> None:
    """With it ends what only it was waiting for; the next scrape begins anew."""
    renderer.slices = 10_000_000
    host, port = await nursery.start(serve_metrics, renderer.metrics, MetricsSettings("127.0.0.1", 0), renderer.stop)
    stream = await trio.open_tcp_stream(host, port)
    await stream.send_all(b"GET /metrics HTTP/1.1\r\nhost: h\r\n\r\n")
    await renderer.begun.wait()
    await stream.aclose()
    with trio.fail_after(30):
        await renderer.dropped.wait()
    renderer.slices = 1
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
        assert (await client.get("/metrics")).content == renderer.text


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
        await serving.start(serve_metrics, renderer.metrics, MetricsSettings("127.0.0.1", 0), renderer.stop)
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
    serve = partial(serve_metrics, renderer.metrics, MetricsSettings("127.0.0.1", 0), renderer.stop, access=access)
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
    host, port = await nursery.start(partial(serve_metrics, renderer.metrics, settings, renderer.stop, limits=counter))
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
