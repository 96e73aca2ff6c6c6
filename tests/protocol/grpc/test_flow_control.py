"""Flow control in both directions: who is slow makes the other wait, and nothing piles up."""

from __future__ import annotations

import h2.settings
import pytest
import trio
import trio.testing
from h2.errors import ErrorCodes

from protocol.grpc.settings import ConnectionLimits
from protocol.http2 import output
from tests.protocol.grpc.client import framed
from tests.protocol.grpc.harness import (
    DEADLINE_EXCEEDED,
    connected,
)


async def test_a_large_response_waits_for_the_clients_window(autojump_clock: trio.testing.MockClock) -> None:
    async with connected(acknowledges=False) as peers:
        stream = await peers.client.open("/test.Test/Echo")
        await peers.client.send(stream, framed(bytes(200_000)), end=True)
        response = peers.client.responses[stream]
        while len(response.data) < 65535:
            await peers.client.read()
        await trio.testing.wait_all_tasks_blocked()
        assert len(response.data) == 65535  # the default window, and not a byte more
        assert not response.has_ended
        peers.client.acknowledges = True
        peers.client.h2.increment_flow_control_window(100_000)
        peers.client.h2.increment_flow_control_window(100_000, stream)
        await peers.client.flush()
        assert len((await peers.client.finish(stream)).messages[0]) == 200_000


async def test_a_window_that_settings_open_lets_the_response_go_on(autojump_clock: trio.testing.MockClock) -> None:
    window = h2.settings.SettingCodes.INITIAL_WINDOW_SIZE
    async with connected(client_settings={window: 10}) as peers:
        stream = await peers.client.open("/test.Test/Echo")
        await peers.client.send(stream, framed(bytes(1000)), end=True)
        while len(peers.client.responses[stream].data) < 10:
            await peers.client.read()
        peers.client.h2.update_settings({window: 100_000})
        await peers.client.flush()
        assert (await peers.client.finish(stream)).messages == [bytes(1000)]


async def test_a_client_that_does_not_read_makes_the_handler_wait(autojump_clock: trio.testing.MockClock) -> None:
    """Even with endless windows, no more than the backlog is made ahead of the socket."""
    window = h2.settings.SettingCodes.INITIAL_WINDOW_SIZE
    async with connected(client_settings={window: 2**31 - 1}, lockstep=True, acknowledges=False) as peers:
        peers.client.h2.increment_flow_control_window(2**30)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peers.client.start_call, "/test.Test/Flood", b"x")
            await peers.client.transport.receive_some(100_000)  # the server's first frames
        await trio.testing.wait_all_tasks_blocked()
        made = peers.calls.started * 100_000
        assert made <= output.MAX_BACKLOG + 200_000
        for _ in range(100):
            await peers.client.transport.receive_some(100_000)
        await trio.testing.wait_all_tasks_blocked()
        assert made < peers.calls.started * 100_000 <= made + 100 * 100_000 + 200_000


async def test_a_handler_that_does_not_read_makes_the_client_wait(autojump_clock: trio.testing.MockClock) -> None:
    """What a client may send ahead is the stream's window; reading gives the space back."""
    async with connected(ConnectionLimits(stream_window=70_000)) as peers:
        client = peers.client
        stream = await client.open("/test.Test/Deaf")
        while client.h2.remote_settings.initial_window_size != 70_000:
            await client.read()
        await client.send(stream, framed(bytes(50_000)) + bytes(70_000 - 50_005))
        await trio.testing.wait_all_tasks_blocked()
        assert client.h2.local_flow_control_window(stream) == 0
        peers.calls.gate.set()
        while not client.h2.local_flow_control_window(stream):
            await client.read()
        assert client.h2.local_flow_control_window(stream) == 50_005
        assert peers.calls.received == [bytes(50_000)]


async def test_data_that_nobody_reads_does_not_eat_the_connections_window(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Bytes of calls that ended early are given back, so that later calls can send."""
    limits = ConnectionLimits(stream_window=65535, connection_window=65535)
    async with connected(limits) as peers:
        for _ in range(10):
            stream = await peers.client.open("/test.Test/Wait", {"grpc-timeout": "1S"})
            await peers.client.send(stream, framed(bytes(60_000))[:-1])
            assert (await peers.client.finish(stream)).status == DEADLINE_EXCEEDED
        assert (await peers.client.call("/test.Test/Echo", bytes(60_000))).messages == [bytes(60_000)]


@pytest.mark.parametrize("size", [0, 1, 16_383, 16_384, 131_072, 3_000_000])
async def test_messages_of_many_sizes_go_both_ways(size: int) -> None:
    async with connected() as peers:
        message = bytes(size - 1) + b"x" if size else b""
        assert (await peers.client.call("/test.Test/Echo", message)).messages == [message]


async def test_a_window_that_stays_shut_ends_the_call(autojump_clock: trio.testing.MockClock) -> None:
    """A client that takes no response for a minute must not hold it in memory for ever."""
    async with connected(acknowledges=False) as peers:
        stream = await peers.client.open("/test.Test/Echo")
        await peers.client.send(stream, framed(bytes(200_000)), end=True)
        response = await peers.client.finish(stream)
        assert response.reset == ErrorCodes.CANCEL
        assert trio.current_time() == pytest.approx(60, abs=1)
        peers.client.acknowledges = True
        peers.client.h2.increment_flow_control_window(100_000)
        assert (await peers.client.call("/test.Test/Echo", b"on")).messages == [b"on"]


async def test_a_slow_window_is_no_shut_one(autojump_clock: trio.testing.MockClock) -> None:
    async with connected(acknowledges=False) as peers:
        stream = await peers.client.open("/test.Test/Echo")
        await peers.client.send(stream, framed(bytes(700_000)), end=True)
        for _ in range(20):
            await trio.sleep(20)
            peers.client.h2.increment_flow_control_window(40_000)
            peers.client.h2.increment_flow_control_window(40_000, stream)
            await peers.client.flush()
        assert len((await peers.client.finish(stream)).messages[0]) == 700_000


async def test_a_window_that_opens_by_the_byte_is_shut(autojump_clock: trio.testing.MockClock) -> None:
    async with connected(acknowledges=False) as peers:
        stream = await peers.client.open("/test.Test/Echo")
        await peers.client.send(stream, framed(bytes(200_000)), end=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peers.client.finish, stream)
            while peers.client.responses[stream].reset is None:
                await trio.sleep(5)
                peers.client.h2.increment_flow_control_window(1)
                if peers.client.responses[stream].reset is None:
                    peers.client.h2.increment_flow_control_window(1, stream)
                await peers.client.flush()
        assert trio.current_time() <= 130
        assert peers.counts == {"send_timeout": 1}


@pytest.mark.parametrize(("path", "body"), [("Echo", b""), ("Echo", b"\0\0"), ("Chat", framed(b"abc")[:-1])])
async def test_a_request_that_does_not_go_on_ends_its_call(
    path: str, body: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    async with connected() as peers:
        stream = await peers.client.open(f"/test.Test/{path}")
        await peers.client.send(stream, body)
        response = await peers.client.finish(stream)
        assert response.status == DEADLINE_EXCEEDED
        assert "is not complete, and too little of it came for 60 seconds" in response.message


async def test_a_stream_may_be_silent_between_its_messages(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        stream = await peers.client.open("/test.Test/Chat")
        await peers.client.send(stream, framed(b"a"))
        await trio.sleep(7_000)
        await peers.client.send(stream, framed(b"b"), end=True)
        assert (await peers.client.finish(stream)).messages == [b"a", b"b"]


async def test_a_request_that_comes_by_the_byte_ends_its_call(autojump_clock: trio.testing.MockClock) -> None:
    """However regularly: less than 64 KiB in a minute is no progress."""
    async with connected() as peers:
        stream = await peers.client.open("/test.Test/Echo")
        await peers.client.send(stream, framed(bytes(10_000))[:1000])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peers.client.finish, stream)
            while not peers.client.responses[stream].has_ended:
                await trio.sleep(5)
                if not peers.client.responses[stream].has_ended:
                    await peers.client.send(stream, b"x")
        assert peers.client.responses[stream].status == DEADLINE_EXCEEDED
        assert trio.current_time() <= 70
        assert peers.counts == {"receive_timeout": 1}


async def test_a_large_request_may_take_its_time(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        message = bytes(700_000)
        stream = await peers.client.open("/test.Test/Echo")
        data = framed(message)
        for start in range(0, len(data), 70_000):
            await peers.client.send(stream, data[start : start + 70_000], end=start + 70_000 >= len(data))
            await trio.sleep(50)
        assert (await peers.client.finish(stream)).messages == [message]
