"""The bytes of a connection, over real sockets."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from protocol.reactor.transport import SEND_SIZE, PlainWire, rest_of, split, wire_over


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


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="this system has one way to control congestion")
async def test_clients_on_the_same_machine_are_not_paced() -> None:
    async with connected() as (wire, _):
        assert wire.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith(b"reno")


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


PARTS = [b"", *(bytes([number % 256]) * (1 + number * 37 % 5000) for number in range(1500)), bytes(3_000_000), b"end"]


async def test_parts_leave_in_their_order() -> None:
    """In as many pieces as it takes."""
    async with connected() as (wire, client), trio.open_nursery() as nursery:
        nursery.start_soon(wire.send_parts, PARTS, 5, never)
        received = bytearray()
        while len(received) < sum(map(len, PARTS)):
            received += await client.receive_some()
        assert received == b"".join(PARTS)


async def test_what_is_sent_at_once_is_what_the_kernel_takes() -> None:
    async with connected() as (wire, client):
        sent = wire.send_at_once([bytes(10_000_000), bytes(10_000_000)])
        assert 0 < sent < 20_000_000
        while more := wire.send_at_once([bytes(1_000_000)]):  # its client takes some meanwhile
            sent += more
        received = 0
        while received < sent:
            received += len(await client.receive_some())
        assert received == sent
        wire.abort()
        assert wire.send_at_once([b"lost"]) == 0


async def test_parts_for_a_client_that_reads_nothing(autojump_clock: trio.testing.MockClock) -> None:
    told: list[float] = []
    async with connected() as (wire, _):
        assert not await wire.send_parts([bytes(30_000_000)] * 2, 7, lambda: told.append(trio.current_time()))
    assert told == [pytest.approx(7, abs=0.1)]


@pytest.mark.parametrize("size", range(9))
def test_parts_are_split_at_any_byte(size: int) -> None:
    parts = [b"ab", b"", b"cde", b"fg"]
    first, rest = split(parts, size)
    assert b"".join(first) == b"abcdefg"[:size]
    assert b"".join(rest) == b"abcdefg"[size:]
    assert rest_of(parts, size) == rest


async def test_over_any_stream() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    wire = wire_over(ours)
    assert wire.send_at_once([b"a"]) == 0
    assert await wire.send_parts([b"ab", b"c"], 5, never)
    await wire.send_eof()
    assert [data async for data in theirs] == [b"abc"]
    await theirs.send_all(b"xyz")
    view = memoryview(bytearray(2))
    assert await wire.receive_into(view) == 2
    assert bytes(view) == b"xy"
    assert await wire.receive(5) == b"z"
    await wire.aclose()
    assert await wire.receive(5) == b""
