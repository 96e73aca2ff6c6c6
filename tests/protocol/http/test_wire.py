"""The bytes of a connection, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from protocol.http.wire import SEND_SIZE, PlainWire


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[PlainWire, trio.SocketStream]]:
    """A wire, and the stream of its client."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener, await trio.open_tcp_stream(*listener.socket.getsockname()) as client:
        wire = PlainWire(await listener.accept())
        try:
            yield wire, client
        finally:
            wire.abort()


def never() -> None:
    raise AssertionError("nobody pauses")


async def test_what_is_sent_arrives() -> None:
    async with connected() as (wire, client):
        assert await wire.send(b"abc", 5, never)
        assert await client.receive_some() == b"abc"
        await client.send_all(b"defg")
        assert await wire.receive(2) == b"de"
        view = memoryview(bytearray(10))
        assert await wire.receive_into(view) == 2
        assert bytes(view[:2]) == b"fg"


async def test_the_end_is_no_bytes() -> None:
    async with connected() as (wire, client):
        await client.send_eof()
        assert await wire.receive(10) == b""
        assert await wire.receive_into(memoryview(bytearray(10))) == 0
        await wire.send_eof()
        assert await client.receive_some() == b""


async def test_a_client_that_is_lost() -> None:
    """Reads as its end, and takes nothing."""
    async with connected() as (wire, client):
        client.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close means reset
        await client.aclose()
        assert await wire.receive(10) == b""
        assert not await wire.send(b"x" * 100, 5, never)


@pytest.mark.parametrize("size", [SEND_SIZE - 1, SEND_SIZE * 20 + 7])
async def test_more_than_the_kernel_takes_at_once(size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    async with connected() as (wire, client), trio.open_nursery() as nursery:
        nursery.start_soon(wire.send, data, 5, never)
        received = bytearray()
        while len(received) < size:
            received += await client.receive_some()
        assert received == data


async def test_a_client_that_reads_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """Is given up after its pause, and that is told."""
    told: list[float] = []
    async with connected() as (wire, _):
        assert not await wire.send(b"x" * 50_000_000, 7, lambda: told.append(trio.current_time()))
    assert told == [pytest.approx(7, abs=0.1)]


async def test_closing_ends_what_waits() -> None:
    async with connected() as (wire, _), trio.open_nursery() as nursery:
        ended = []

        async def receive() -> None:
            ended.append(await wire.receive(10))

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        wire.abort()
        await trio.testing.wait_all_tasks_blocked()
        assert ended == [b""]
        assert not await wire.send(b"x", 5, never)
