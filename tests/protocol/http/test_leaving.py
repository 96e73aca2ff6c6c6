"""A server that stops: its clients are told to go away, and lose no request over it."""

from __future__ import annotations

import json
from functools import partial

import pytest
import trio
import trio.testing

from protocol.http.settings import LEAVE_SECONDS
from tests.protocol.http.conftest import Serve, Served
from tests.protocol.http.http1.test_connection import EMPTY, INFER, Client, connect, head, sized

pytestmark = pytest.mark.slow

GATE = "/v2/models/gate/infer"
GENERATE = "/v2/models/gate/generate"
READY = head("/v2/health/ready", method="GET")


@pytest.fixture
async def server(serve: Serve) -> Served:
    return await serve()


async def closes(client: Client) -> bool:
    _, headers, _ = await client.response()
    return headers.get("connection") == "close"


@pytest.mark.parametrize("path", [GATE, GENERATE])
async def test_from_then_on_every_answer_says_it(server: Served, path: str) -> None:
    """Also that to a request which was under way, and those on new connections; a server that drains takes these."""
    client = await connect(server)
    await client.send(sized(path, EMPTY if path == GATE else b"{}"))
    await server.core.started.wait()
    server.leaving.set()
    await trio.testing.wait_all_tasks_blocked(0.01)
    server.core.gate.set()
    assert await closes(client)
    assert await client.is_at_end()
    for request in (sized(INFER, EMPTY), sized(path, EMPTY if path == GATE else b"{}"), READY):
        client = await connect(server)
        await client.send(request)
        assert await closes(client)
        assert await client.is_at_end()


@pytest.mark.parametrize("request_", [sized(INFER, EMPTY), READY, sized(INFER, EMPTY)[:-3], b"GET"])
async def test_a_connection_that_was_not_told_has_one_more_answer(server: Served, request_: bytes) -> None:
    """Whatever it asks, in whatever pieces, and also when the server takes no more connections."""
    whole = sized(INFER, EMPTY) if request_ in sized(INFER, EMPTY) else READY
    clients = [await connect(server) for _ in range(3)]
    for client in clients:
        await client.send(sized(INFER, EMPTY))
        assert not await closes(client)
    await clients[1].send(request_[: len(request_) // 2])
    await trio.testing.wait_all_tasks_blocked(0.01)
    server.leaving.set()
    server.stop.set()
    await trio.testing.wait_all_tasks_blocked(0.01)
    await clients[0].send(request_)
    await clients[1].send(request_[len(request_) // 2 :])
    await trio.testing.wait_all_tasks_blocked(0.01)
    for client in clients[:2]:
        await client.send(whole[len(request_) :])
        assert await closes(client)
        assert await client.is_at_end()
    assert await clients[2].is_at_end()
    with trio.fail_after(10):
        await server.ended.wait()


async def test_pipelined_requests_are_answered_up_to_the_one_that_says_so(server: Served) -> None:
    client = await connect(server)
    await client.send(sized(GATE, b'{"id":"0","inputs":[]}'))
    await server.core.started.wait()
    await client.send(sized(INFER, b'{"id":"1","inputs":[]}'))
    server.leaving.set()
    await trio.testing.wait_all_tasks_blocked(0.01)
    server.core.gate.set()
    _, headers, body = await client.response()
    assert (headers["connection"], json.loads(body)["id"]) == ("close", "0")
    assert await client.is_at_end()


async def test_idle_connections_end_while_the_server_drains(server: Served) -> None:
    client = await connect(server)
    await client.send(sized(INFER, EMPTY))
    assert not await closes(client)
    server.leaving.set()
    with trio.fail_after(10 * LEAVE_SECONDS):
        assert await client.is_at_end()
    assert server.services.limits.counts() == {}
    assert not server.ended.is_set()


async def test_many_busy_clients_lose_nothing(server: Served) -> None:
    """Each asks again until it is told to go, or finds its connection closed before it has asked."""
    outcomes: list[int] = []

    async def ask(path: str) -> None:
        client = await connect(server)
        while True:
            await client.send(sized(path, EMPTY if path == INFER else b"{}"))
            status, headers, _ = await client.response()
            outcomes.append(status)
            if "connection" in headers:
                return

    async def stop_soon() -> None:
        while len(outcomes) < 300:
            await trio.lowlevel.checkpoint()
        server.leaving.set()
        server.stop.set()

    with trio.fail_after(60):
        async with trio.open_nursery() as asking:
            for index in range(16):
                asking.start_soon(partial(ask, (INFER, "/v2/models/echo/generate")[index % 2]))
            asking.start_soon(stop_soon)
        await server.ended.wait()
    assert set(outcomes) == {200}
