"""A server on loopback for the tests that need sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pytest
import trio

from protocol.http.server import HttpSettings, serve_http
from protocol.services import EdgeServices
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import make_services


@dataclass
class Served:
    """A running server; `ended` is set when `serve_http` has returned."""

    core: FakeCore
    services: EdgeServices
    host: str
    port: int
    stop: trio.Event
    scope: trio.CancelScope
    ended: trio.Event
    leaving: trio.Event
    streams: list[trio.SocketStream] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def connect(self) -> trio.SocketStream:
        """A plain connection, closed at the test's end if not before."""
        stream = await trio.open_tcp_stream(self.host, self.port)
        self.streams.append(stream)
        return stream


Serve: TypeAlias = Callable[..., Awaitable[Served]]


# For tests of what only the fast path does.
only_fast_path = pytest.mark.parametrize("has_fast_path", [True], indirect=True, ids=["fast"])


@pytest.fixture(params=[pytest.param(True, id="fast"), pytest.param(False, id="task", marks=pytest.mark.slow)])
def has_fast_path(request: pytest.FixtureRequest) -> bool:
    """Every test of a server runs twice: plain requests are answered alike by callbacks and by tasks."""
    return bool(request.param)


@pytest.fixture
async def serve(nursery: trio.Nursery, has_fast_path: bool) -> AsyncIterator[Serve]:
    """Starts servers on free ports of loopback; the test's end cancels them."""

    async def start(
        core: FakeCore | None = None,
        settings: HttpSettings | None = None,
        services: EdgeServices | None = None,
        *,
        has_fast_path: bool = has_fast_path,
    ) -> Served:
        core = core or FakeCore()
        services = services or make_services(core)
        if isinstance(services.core, FakeCore):
            services.core.tasks = nursery
        settings = replace(settings or HttpSettings(host="127.0.0.1", port=0), has_fast_path=has_fast_path)
        stop, leaving, scope, ended = trio.Event(), trio.Event(), trio.CancelScope(), trio.Event()

        async def run(*, task_status: trio.TaskStatus[tuple[str, int]]) -> None:
            with scope:
                await serve_http(
                    services,
                    settings,
                    stop,
                    leaving=leaving,
                    task_status=task_status,
                )
            ended.set()

        host, port = await nursery.start(run)
        server = Served(core, services, host, port, stop, scope, ended, leaving)
        servers.append(server)
        return server

    servers: list[Served] = []
    yield start
    for server in servers:
        for stream in server.streams:
            await trio.aclose_forcefully(stream)
