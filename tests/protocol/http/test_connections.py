"""Connections of a listener: failures that stay within one, how many there may be, and how each of them ends."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from typing import Any

import h2.events
import pytest
import trio
import trio.testing

from protocol.http.connection import Connection
from protocol.http.connections import LOOK_SECONDS, MAX_REFUSALS, ConnectionServer, serve_app
from protocol.http.exchange import Exchange
from protocol.http.reply import Reply
from protocol.http.server import HttpSettings
from protocol.http.settings import ConnectionLimits
from protocol.reactor.drivers import has_epoll, the_poller
from tests.protocol.http.conftest import Serve, Served, only_fast_path
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.http2_client import Http2Client
from tests.protocol.loop_turns import Steps

LOOPBACK = HttpSettings(host="127.0.0.1", port=0)
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"


def limited(**limits: Any) -> HttpSettings:
    return replace(LOOPBACK, connections=ConnectionLimits(**limits))


async def read_to_end(stream: trio.SocketStream) -> bytes:
    data = b""
    with trio.fail_after(10):
        async for part in stream:
            data += part
    return data


async def is_alive(server: Served) -> bool:
    stream = await server.connect()
    await stream.send_all(LIVE)
    return (await stream.receive_some()).startswith(b"HTTP/1.1 200")


async def test_an_application_that_fails_is_answered_for(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    """With 500, and a line in the log."""

    async def app(exchange: Exchange) -> None:
        raise ValueError("a defect")

    host, port = await nursery.start(serve_app, app, "127.0.0.1", 0, ConnectionLimits(), trio.Event())
    async with await trio.open_tcp_stream(host, port) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 500")
    (record,) = caplog.records
    assert record.getMessage() == "GET b'/' failed"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)
    assert logging.getLogger("hypercorn.error").handlers == []


async def test_an_error_in_one_connection_ends_that_one_only(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged with its own traceback, not that of the nurseries around it."""
    server = await serve()
    good = await server.connect()

    async def fail(self: Connection) -> None:
        raise BaseExceptionGroup("", [BaseExceptionGroup("", [KeyError(1)])])

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        await good.send_all(LIVE)
        await good.receive_some()
        patch.setattr(Connection, "run", fail)
        assert await read_to_end(await server.connect()) == b""
    (record,) = caplog.records
    assert record.getMessage() == "an HTTP connection failed, and ends: a defect of the server"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)
    await good.send_all(LIVE)
    assert (await good.receive_some()).startswith(b"HTTP/1.1 200")


@pytest.mark.slow
async def test_nothing_is_logged_of_ordinary_traffic(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = await serve(FakeCore())
    with caplog.at_level(logging.INFO, "protocol"):
        client = Http2Client(await server.connect())
        await client.get("/v2")
        stream = await server.connect()
        await stream.send_all(LIVE)
        await stream.aclose()
        server.stop.set()
        with trio.fail_after(10):
            await client.wait_for(h2.events.ConnectionTerminated)
            await client.stream.aclose()
            await server.ended.wait()
    assert caplog.records == []


@pytest.mark.parametrize(
    "sent",
    [
        LIVE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + LIVE,
        LIVE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + b"x" * 200_000,
        b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12345" + LIVE,
        LIVE.replace(b"HTTP/1.1", b"HTTP/1.0") * 2,
    ],
)
async def test_more_behind_the_last_request(serve: Serve, sent: bytes) -> None:
    """It is answered by nobody, and holds nothing: the server can stop."""
    server = await serve()
    stream = await server.connect()
    await stream.send_all(sent)
    assert (await read_to_end(stream)).count(b"HTTP/1.1 ") == 1
    server.stop.set()
    with trio.fail_after(10):
        await stream.aclose()
        await server.ended.wait()


async def test_one_connection_too_many(serve: Serve) -> None:
    """It is told so and closed; when another one has ended there is room again."""
    server = await serve(settings=limited(max_connections=2))
    streams = [await server.connect() for _ in range(2)]
    for stream in streams:
        await stream.send_all(LIVE)
        await stream.receive_some()
    refused = await server.connect()
    await refused.send_all(LIVE)
    answer = await read_to_end(refused)
    head, body = answer.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close" in head
    assert body == (
        b'{"error":"2 connections are open, which is the maximum. Use --http-max-connections to increase the limit."}'
    )
    assert server.services.limits.counts() == {("http", "max_connections"): 1}
    await streams[0].aclose()
    with trio.fail_after(10):
        while not await is_alive(server):
            await trio.lowlevel.checkpoint()


async def test_far_too_many_connections(serve: Serve) -> None:
    """Those that wait for their refusal to be read are few; the others are closed at once."""
    server = await serve(settings=limited(max_connections=0))
    streams = [await server.connect() for _ in range(MAX_REFUSALS + 20)]
    answers = 0
    for stream in streams:
        with suppress(trio.BrokenResourceError):
            answers += b" 503 " in await read_to_end(stream)
    assert MAX_REFUSALS <= answers < len(streams)
    assert server.services.limits.counts() == {("http", "max_connections"): len(streams)}


async def test_an_idle_connection_is_closed(serve: Serve) -> None:
    """Before its first request, and between two."""
    server = await serve(settings=limited(idle_timeout=0.05))
    new, used = await server.connect(), await server.connect()
    await used.send_all(LIVE)
    assert (await used.receive_some()).startswith(b"HTTP/1.1 200")
    assert await read_to_end(used) == b""
    assert await read_to_end(new) == b""
    assert server.services.limits.counts() == {("http", "idle_timeout"): 2}


@pytest.mark.slow
async def test_an_idle_http2_connection_is_closed(serve: Serve) -> None:
    """With a goodbye; also where its last stream was reset, and where it only sends what asks for nothing."""
    server = await serve(settings=limited(idle_timeout=0.3))
    client = Http2Client(await server.connect())
    stream_id = await client.start("POST", "/v2/models/wait/infer", b'{"inputs":[]}')
    await server.core.started.wait()
    await trio.sleep(0.5)  # not idle: the model works
    assert not client.is_closed
    client.h2.reset_stream(stream_id)
    await client.flush()
    await client.wait_for(h2.events.ConnectionTerminated)
    with trio.fail_after(10):
        await client.read_to_end()


async def test_a_busy_connection_is_not_idle(serve: Serve) -> None:
    server = await serve(settings=limited(idle_timeout=0.05, header_timeout=0.05))
    stream = await server.connect()
    await stream.send_all(b"POST /v2/models/gate/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 13\r\n\r\n")
    await trio.sleep(0.2)
    await stream.send_all(b'{"inputs":[]}')
    await server.core.started.wait()
    await trio.sleep(0.2)
    server.core.gate.set()
    assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("begin", [b"G", b"GET /v2 HTTP/1.1\r\nHos", LIVE + LIVE[:-2]])
async def test_headers_that_take_too_long(serve: Serve, begin: bytes) -> None:
    """Counted from their first byte, however they trickle; answered 408."""
    server = await serve(settings=limited(header_timeout=0.1))
    stream = await server.connect()
    await stream.send_all(begin)
    answer = b""
    with trio.fail_after(10):
        while b" 408 " not in answer:
            answer += await stream.receive_some()
    assert answer.count(b"HTTP/1.1 ") == (2 if begin.startswith(LIVE) else 1)
    assert answer.endswith(
        b'{"error":"the request\'s headers are not complete after 0.1 seconds. '
        b'Use --http-header-timeout to allow more."}'
    )
    assert await read_to_end(stream) == b""
    assert server.services.limits.counts() == {("http", "header_timeout"): 1}


@pytest.mark.slow
async def test_headers_that_trickle(serve: Serve) -> None:
    server = await serve(settings=limited(header_timeout=0.3))
    stream = await server.connect()
    await stream.send_all(b"GET /v2 HTTP/1.1\r\n")
    with trio.fail_after(10), suppress(trio.BrokenResourceError):
        while True:
            await stream.send_all(b"a: b\r\n")
            await trio.sleep(0.05)
    assert server.services.limits.counts() == {("http", "header_timeout"): 1}


async def test_a_connection_ends_after_its_requests(serve: Serve) -> None:
    """The last answer says so."""
    server = await serve(settings=limited(max_requests_per_connection=2))
    stream = await server.connect()
    await stream.send_all(LIVE * 3)
    answer = await read_to_end(stream)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.count(b"connection: close") == 1
    assert server.services.limits.counts() == {("http", "max_requests_per_connection"): 1}


async def test_the_last_answer_before_the_end_says_so(serve: Serve) -> None:
    """A client must not send its next request into a server that stops."""
    server = await serve()
    stream = await server.connect()
    await stream.send_all(
        b"POST /v2/models/gate/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 13\r\n\r\n" + b'{"inputs":[]}'
    )
    await server.core.started.wait()
    server.stop.set()
    await trio.testing.wait_all_tasks_blocked()
    server.core.gate.set()
    assert b"\r\nconnection: close\r\n" in await read_to_end(stream)


async def test_a_slow_reader_gets_all_and_a_deaf_one_is_cut_off(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """The time is for each piece of a response, however long the whole takes."""
    data = bytes(range(256)) * 40_000
    limits: list[str] = []

    async def app(exchange: Exchange) -> None:
        await exchange.reply(Reply(body=data[:100], tail=[data[100:1_000_000], memoryview(data)[1_000_000:]]))

    async def serve(limits_: ConnectionLimits) -> tuple[str, int]:
        host, port = await nursery.start(
            lambda *, task_status: serve_app(
                app, "127.0.0.1", 0, limits_, trio.Event(), on_limit=limits.append, task_status=task_status
            )
        )
        return host, port

    address = await serve(ConnectionLimits(send_timeout=5))
    async with await trio.open_tcp_stream(*address) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b""
        while not received.endswith(data):
            received += await stream.receive_some(500_000)
            await trio.sleep(0.5)
    async with await trio.open_tcp_stream(*address) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await trio.sleep(20)
        left = 0
        with suppress(trio.BrokenResourceError):
            while part := await stream.receive_some():
                left += len(part)
    assert left < len(data)
    assert limits == ["send_timeout"]


async def test_many_connections_are_looked_after_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """So that ten thousand idle ones do not hold the loop for as many looks; and each is still closed in time."""
    monkeypatch.setattr("protocol.http.connections.LOOKS_AT_ONCE", 4)
    looks: list[float] = []
    check_time = Connection.check_time

    def counted(connection: Connection, now: float) -> None:
        looks.append(trio.current_time())
        check_time(connection, now)

    monkeypatch.setattr(Connection, "check_time", counted)

    async def app(exchange: Exchange) -> None:
        raise AssertionError("there are no requests")

    server = ConnectionServer(app, ConnectionLimits(idle_timeout=2, header_timeout=2))
    ends = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.check_times)
        for _ in range(10):
            ours, theirs = trio.socket.socketpair()
            nursery.start_soon(server.serve, trio.SocketStream(theirs))
            ends.append(trio.SocketStream(ours))
        began = trio.current_time()
        for end in ends:
            assert await end.receive_some() == b""
            await end.aclose()
        assert 2 <= trio.current_time() - began <= 2.5
        nursery.cancel_scope.cancel()
    assert max(looks.count(at) for at in looks) <= 4
    assert len(looks) >= 100


@only_fast_path
async def test_of_many_clients_that_leave_at_once_some_are_ended_in_a_turn(serve: Serve) -> None:
    """Four begin to end in each turn of the loop, and take a few turns each; the others are not even woken."""
    server = await serve()
    clients = [await server.connect() for _ in range(120)]
    for client in clients:
        await client.send_all(LIVE)
        assert (await client.receive_some()).startswith(b"HTTP/1.1 200")
    await trio.testing.wait_all_tasks_blocked()
    with trio.fail_after(30), Steps("_run_handler") as steps:
        for client in clients:
            client.socket.close()
        while server.services.connections.counts()["http"].connections:
            await trio.lowlevel.checkpoint()
    assert max(steps.of_turns) <= 40
    assert sum(steps.of_turns) >= 240


@pytest.mark.skipif(not has_epoll(), reason="this system has no epoll")
async def test_nor_are_all_woken_whose_requests_are_under_way() -> None:
    """Those connections are read ahead by tasks of their own."""
    has_begun = list[bytes]()

    async def app(exchange: Exchange) -> None:
        has_begun.append(exchange.raw_path)
        await trio.sleep_forever()

    server = ConnectionServer(app, ConnectionLimits())
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.check_times)
            ends = []
            for _ in range(120):
                ours, theirs = trio.socket.socketpair()
                nursery.start_soon(server.serve, trio.SocketStream(theirs))
                ends.append(ours)
                await ours.send(LIVE)
            while len(has_begun) < len(ends) or len(the_poller().watched) < len(ends):  # noqa: ASYNC110
                await trio.sleep(LOOK_SECONDS)
            with Steps("_watch") as steps:
                for each in ends:
                    each.close()
                while server.count().connections:
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert max(steps.of_turns) <= 40
