"""Draining a connection: what is in flight finishes, what comes later is refused."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from h2.errors import ErrorCodes

from protocol.grpc.call.stream import SHUTTING_DOWN
from protocol.grpc.connection import connection as connection_module
from tests.protocol.grpc.client import framed
from tests.protocol.grpc.harness import (
    UNAVAILABLE,
    connected,
)


async def test_an_idle_connection_drains_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        await peers.client.read()
        peers.connection.drain()
        await peers.client.read_to_end()
        assert [goaway.error_code for goaway in peers.client.goaways] == [ErrorCodes.NO_ERROR] * 2
        await peers.client.transport.aclose()
        await peers.has_ended.wait()


async def test_draining_finishes_what_is_in_flight_and_refuses_the_rest(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected() as peers:
        client = peers.client
        stream = await client.start_call("/test.Test/Wait", b"x")
        await trio.testing.wait_all_tasks_blocked()
        peers.connection.drain()
        peers.connection.drain()  # again, without effect
        late = await client.call("/test.Test/Echo", b"late")
        assert (late.status, late.message) == (UNAVAILABLE, SHUTTING_DOWN)
        assert not peers.has_ended.is_set()
        peers.calls.gate.set()
        assert (await client.finish(stream)).messages == [b"x"]
        await client.read_to_end()
        assert client.goaways[0].last_stream_id == 2**31 - 1
        assert client.goaways[-1].last_stream_id == max(client.responses)


async def test_draining_lets_a_request_that_is_under_way_come_in(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        stream = await peers.client.open("/test.Test/Echo")
        body = framed(b"hello")
        await peers.client.send(stream, body[:7])
        await trio.testing.wait_all_tasks_blocked()
        peers.connection.drain()
        await trio.testing.wait_all_tasks_blocked()
        await peers.client.send(stream, body[7:], end=True)
        assert (await peers.client.finish(stream)).messages == [b"hello"]


async def test_draining_ends_a_stream_that_waits_for_requests(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        stream = await peers.client.open("/test.Test/Chat")
        await peers.client.send(stream, framed(b"x"))
        await trio.testing.wait_all_tasks_blocked()
        peers.connection.drain()
        response = await peers.client.finish(stream)
        assert response.messages == [b"x"]
        assert (response.status, response.message) == (UNAVAILABLE, SHUTTING_DOWN)
        await peers.client.read_to_end()


async def test_a_client_that_does_not_close_after_goodbye_is_closed(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        await peers.client.read()
        peers.connection.drain()
        start = trio.current_time()
        await peers.has_ended.wait()
        assert trio.current_time() - start == pytest.approx(connection_module.GOODBYE_SECONDS, abs=0.1)


async def test_a_clients_goaway_lets_its_calls_finish(autojump_clock: trio.testing.MockClock) -> None:
    """GOAWAY from a client says that it opens no more streams, not that it gives its calls up."""
    async with connected() as peers:
        stream = await peers.client.start_call("/test.Test/Wait", b"x")
        peers.client.h2.close_connection()
        peers.client.h2.ping(b"12345678")
        await peers.client.flush()
        await trio.testing.wait_all_tasks_blocked()
        peers.calls.gate.set()
        assert (await peers.client.finish(stream)).messages == [b"x"]
        assert peers.client.pings == 1
