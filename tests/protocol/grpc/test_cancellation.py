"""Resets, lost connections and deadlines reach the handlers."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from h2.errors import ErrorCodes

from protocol.grpc.connection.calls import Shared
from protocol.grpc.connection.connection import Connection
from tests.protocol.grpc.client import Client, framed
from tests.protocol.grpc.harness import (
    DEADLINE_EXCEEDED,
    Calls,
    connected,
)


async def test_a_reset_cancels_its_call_only(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        first = await peers.client.start_call("/test.Test/Wait", b"1")
        second = await peers.client.start_call("/test.Test/Wait", b"2")
        await trio.testing.wait_all_tasks_blocked()
        peers.client.h2.reset_stream(first, ErrorCodes.CANCEL)
        await peers.client.flush()
        await trio.testing.wait_all_tasks_blocked()
        assert (peers.calls.started, peers.calls.cancelled) == (2, 1)
        peers.calls.gate.set()
        assert (await peers.client.finish(second)).messages == [b"2"]


async def test_a_call_that_is_reset_at_once_is_not_made(autojump_clock: trio.testing.MockClock) -> None:
    """Headers, request and RST_STREAM in one write: the handler never runs."""
    async with connected() as peers:
        client = peers.client
        stream = client.h2.get_next_available_stream_id()
        headers = {":method": "POST", ":scheme": "http", ":path": "/test.Test/Echo", ":authority": "x"}
        client.h2.send_headers(stream, [*headers.items(), ("content-type", "application/grpc")])
        client.h2.send_data(stream, framed(b"x"), end_stream=True)
        client.h2.reset_stream(stream)
        await client.flush()
        assert (await client.call("/test.Test/Echo", b"on")).messages == [b"on"]
        assert peers.calls.received == [b"on"]


async def test_losing_the_connection_cancels_all_calls(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        for _ in range(5):
            await peers.client.start_call("/test.Test/Wait", b"x")
        await trio.testing.wait_all_tasks_blocked()
        await peers.client.transport.aclose()
        await peers.has_ended.wait()
        assert (peers.calls.started, peers.calls.cancelled) == (5, 5)


async def test_cancelling_the_connection_cancels_all_calls(autojump_clock: trio.testing.MockClock) -> None:
    calls = Calls()
    client_end, server_end = trio.testing.memory_stream_pair()
    client = Client(client_end)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Connection(server_end, Shared(calls.mapping())).run)
        await client.start()
        await client.start_call("/test.Test/Wait", b"x")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert calls.cancelled == 1
    await client.read_to_end()


@pytest.mark.parametrize(("header", "seconds"), [("3S", 3), ("250m", 0.25), ("1M", 60), ("0S", 0)])
async def test_a_deadline_ends_a_call(header: str, seconds: float, autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        start = trio.current_time()
        response = await peers.client.call("/test.Test/Wait", b"x", headers={"grpc-timeout": header})
        assert response.status == DEADLINE_EXCEEDED
        assert trio.current_time() - start == pytest.approx(seconds, abs=0.01)
        assert peers.calls.cancelled == peers.calls.started


async def test_a_deadline_also_ends_a_request_that_never_comes(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        stream = await peers.client.open("/test.Test/Echo", {"grpc-timeout": "5S"})
        assert (await peers.client.finish(stream)).status == DEADLINE_EXCEEDED
