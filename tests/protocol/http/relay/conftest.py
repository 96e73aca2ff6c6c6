"""A relaying edge on loopback, in front of the edge of a small core."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest
import trio

from protocol.access.told_keys import ToldKeys
from protocol.http.connections import serve_app
from protocol.http.exchange import App
from protocol.http.relay.app import RelayApp
from protocol.http.relay.linked import LinkedApp
from protocol.http.relay.upstream import Upstreams
from protocol.http.routes import route_table
from protocol.http.settings import ConnectionLimits, HttpSettings
from protocol.limits.request_memory import RequestMemory
from protocol.services import EdgeServices, Linked
from tests.protocol.http.conftest import Serve, Served


@dataclass
class Relayed:
    """A running edge; `clients` are those in whose name a connection to the core's edge was opened."""

    url: str
    port: int
    upstreams: Upstreams
    core: Served
    clients: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # limits


Relays = Callable[..., Awaitable[Relayed]]


async def _know_all(name: str, version: int, outputs: tuple[str, ...]) -> None:
    """The core is in this process."""


@pytest.fixture(params=[True], ids=["fast"])
def has_fast_path(request: pytest.FixtureRequest) -> bool:
    """The core's edge is not what is tested here."""
    return bool(request.param)


@pytest.fixture
async def relays(nursery: trio.Nursery, serve: Serve) -> AsyncIterator[Relays]:
    """Starts edges in front of an edge of the core, whose services are `behind`. With services that are `linked` such
    an edge runs inference by itself."""

    async def start(
        behind: EdgeServices | None = None,
        linked: EdgeServices | None = None,
        *,
        keys: ToldKeys | None = None,
        memory: int = 1 << 30,
        settings: HttpSettings = HttpSettings(),  # noqa: B008 (frozen)
        has_texts: bool = False,
        keeps_responses: bool = True,
        most: int = 1000,
    ) -> Relayed:
        core = await serve(None if behind is None else behind.core, services=behind)

        async def open_one(client: str) -> trio.SocketStream:
            relayed.clients.append(client)
            return await core.connect()

        relayed = Relayed("", 0, Upstreams(open_one, most=most), core)
        account = RequestMemory(memory) if linked is None else linked.memory
        app: App
        app = relay = RelayApp(relayed.upstreams, account, relayed.refused.append, 60, 0.1, route_table())
        if linked is not None:
            app = LinkedApp(
                Linked(linked, keys, _know_all), settings, relay, has_texts=has_texts, keeps_responses=keeps_responses
            )
        nursery.start_soon(relayed.upstreams.run)
        host, relayed.port = await nursery.start(serve_app, app, "127.0.0.1", 0, ConnectionLimits(), trio.Event())
        relayed.url = f"http://{host}:{relayed.port}"
        return relayed

    yield start
    nursery.cancel_scope.cancel()
