"""Clients that flood, promise, inflate and withhold: they are cut off or refused, it is counted, and others go on."""

from __future__ import annotations

import contextlib
import gzip
import struct
from collections.abc import Iterable

import pytest
import trio
import trio.testing
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hpack.hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from protocol.grpc.call.receiving import CALL_MEMORY
from protocol.grpc.connection.calls import Calls
from protocol.grpc.settings import ConnectionLimits
from protocol.http2 import events, h2_connection
from tests.protocol.grpc.client import REQUEST_HEADERS, framed
from tests.protocol.grpc.harness import DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, Peers, connected
from tests.protocol.grpc.raw import Raw

ECHO, WAIT, CHAT, FLOOD = "/test.Test/Echo", "/test.Test/Wait", "/test.Test/Chat", "/test.Test/Flood"


def raw_settings(numbers: Iterable[int]) -> Raw:
    return Raw(4, b"".join(struct.pack(">HI", number, 1) for number in numbers))


async def send_frames(peers: Peers, *frames: Frame | Raw) -> None:
    with contextlib.suppress(trio.BrokenResourceError):
        await peers.client.transport.send_all(b"".join(frame.serialize() for frame in frames))


async def expect_cut_off(peers: Peers, limit: str) -> None:
    """A GOAWAY that says why, then the end; whatever ran is cancelled."""
    await peers.client.read_to_end()
    assert [goaway.error_code for goaway in peers.client.goaways] == [ErrorCodes.ENHANCE_YOUR_CALM]
    await peers.has_ended.wait()
    assert peers.counts[limit] == 1
    assert peers.calls.cancelled == peers.calls.started


def window_update(stream: int) -> WindowUpdateFrame:
    return WindowUpdateFrame(stream, window_increment=1)


FLOODS: list[tuple[str, Frame | Raw]] = [
    ("settings", SettingsFrame(0, settings={SettingCodes.ENABLE_PUSH: 0})),
    ("settings that are answered", SettingsFrame(0, flags=["ACK"])),
    ("priorities", PriorityFrame(1, stream_weight=5)),
    ("empty data", DataFrame(1, b"")),
    ("padding only", DataFrame(1, b"", pad_length=10, flags=["PADDED"])),
    ("windows of the connection", window_update(0)),
    ("windows of a stream", window_update(1)),
    ("answers to no ping", PingFrame(0, bytes(8), flags=["ACK"])),
    ("farewells", GoAwayFrame(0)),
    ("unknown frames", Raw(0xBE, b"x")),
]


@pytest.mark.parametrize("frame", [frame for _, frame in FLOODS], ids=[name for name, _ in FLOODS])
async def test_floods_of_frames_that_carry_nothing(frame: Frame | Raw, autojump_clock: trio.testing.MockClock) -> None:
    async with connected(ConnectionLimits(max_control_frames=100)) as peers:
        await peers.client.open(WAIT)
        await send_frames(peers, *[frame] * 200)
        await expect_cut_off(peers, "max_control_frames")


@pytest.mark.parametrize("frame", [frame for _, frame in FLOODS], ids=[name for name, _ in FLOODS])
async def test_some_of_them_are_nothing_bad(frame: Frame | Raw, autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        stream = await peers.client.open(CHAT)
        await send_frames(peers, *[frame] * 50)
        peers.client.h2.send_data(stream, framed(b"on"), end_stream=True)
        await peers.client.flush()
        assert (await peers.client.finish(stream)).messages == [b"on"]


async def test_a_flood_of_pings(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        await peers.client.open(WAIT)
        await send_frames(peers, *[PingFrame(0, bytes(8))] * 1000)
        await expect_cut_off(peers, "http2_max_ping_strikes")


async def test_rapid_reset(autojump_clock: trio.testing.MockClock) -> None:
    """Calls that are opened only to be reset: cut off, and no handler is left."""
    async with connected(ConnectionLimits(max_stream_resets=100)) as peers:
        client = peers.client
        for _ in range(150):
            stream = client.h2.get_next_available_stream_id()
            client.h2.send_headers(stream, [*REQUEST_HEADERS.items()])
            client.h2.reset_stream(stream)
        with contextlib.suppress(trio.BrokenResourceError):
            await client.flush()
        await client.read_to_end()
        assert [goaway.error_code for goaway in client.goaways] == [ErrorCodes.ENHANCE_YOUR_CALM]
        assert peers.counts == {"max_stream_resets": 1}


async def test_a_rapid_reset_on_a_busy_machine(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which handles less of what came at one time, in a second, than the limit is."""
    on_request = Calls.on_request

    def handle_slowly(calls: Calls, event: events.RequestReceived) -> None:
        autojump_clock.jump(0.02)
        on_request(calls, event)

    monkeypatch.setattr(Calls, "on_request", handle_slowly)
    await test_rapid_reset(autojump_clock)


async def test_resets_that_the_client_provokes(autojump_clock: trio.testing.MockClock) -> None:
    """A window that overflows makes the server reset the call: it ends, and counts as one that the client reset."""
    async with connected(ConnectionLimits(max_stream_resets=20)) as peers:
        with contextlib.suppress(trio.BrokenResourceError):
            for _ in range(30):
                stream = await peers.client.start_call(WAIT, b"x")
                await send_frames(peers, WindowUpdateFrame(stream, window_increment=2**31 - 1))
        await peers.client.read_to_end()
        assert peers.client.goaways
        assert peers.calls.cancelled == peers.calls.started


# Headers.


async def test_headers_over_the_limit_refuse_the_call(autojump_clock: trio.testing.MockClock) -> None:
    """The connection stays."""
    async with connected(ConnectionLimits(max_header_size=4096)) as peers:
        response = await peers.client.call(ECHO, b"x", headers={"big": "x" * 5000})
        assert response.status == RESOURCE_EXHAUSTED
        assert "larger than the server's limit of 4096 bytes" in response.message
        assert peers.counts == {"max_header_size": 1}
        assert (await peers.client.call(ECHO, b"on", headers={"fits": "x" * 3000})).messages == [b"on"]


async def test_headers_far_over_the_limit_end_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    """They are not even decoded, so the next ones could not be either."""
    async with connected(ConnectionLimits(max_header_size=4096)) as peers:
        await peers.client.open(ECHO, {"big": "x" * 12_000})
        await expect_cut_off(peers, "max_header_size")


async def test_a_bomb_of_compressed_headers(autojump_clock: trio.testing.MockClock) -> None:
    """One header of 4 KB in the table, then thousands of one-byte references to it."""
    encoder = Encoder()
    block = encoder.encode([*REQUEST_HEADERS.items(), ("x-bomb", "x" * 3900)], huffman=False)
    bomb = block + b"\xbe" * 50_000
    async with connected() as peers:
        await send_frames(peers, HeadersFrame(1, bomb, flags=["END_HEADERS"]))
        await expect_cut_off(peers, "max_header_size")


async def test_headers_without_end(autojump_clock: trio.testing.MockClock) -> None:
    """A flood of CONTINUATION frames is stopped before it fills the memory."""
    async with connected() as peers:
        await send_frames(peers, HeadersFrame(1, b"\0\1a\1b"))
        await send_frames(peers, *[ContinuationFrame(1, b"\0\1a\1b")] * 500)
        await peers.client.read_to_end()
        assert len(peers.client.goaways) == 1
        await peers.has_ended.wait()


async def test_more_settings_than_there_are(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        await send_frames(peers, raw_settings(range(100, 1000)))
        await peers.client.read_to_end()
        assert [goaway.error_code for goaway in peers.client.goaways] == [ErrorCodes.ENHANCE_YOUR_CALM]


async def test_unknown_settings_are_not_kept(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        for start in range(100, 2000, 50):
            await send_frames(peers, raw_settings(range(start, start + 50)))
        assert (await peers.client.call(ECHO, b"on")).messages == [b"on"]
        assert not hasattr(peers.connection._h2.client_settings, "__dict__")  # there is no place for them


async def test_a_client_cannot_grow_the_memory_of_our_headers(autojump_clock: trio.testing.MockClock) -> None:
    """It allows any size of table, and causes error texts that are all different."""
    table = {SettingCodes.HEADER_TABLE_SIZE: 2**31 - 1}
    async with connected(client_settings=table) as peers:
        for number in range(50):
            response = await peers.client.call(f"/unknown/{number}{'x' * 150}", b"")
            assert response.status != 0
        encoder = peers.connection._h2.response_headers.encoder
        assert encoder.header_table_size == h2_connection.MAX_ENCODER_TABLE
        assert encoder.header_table._current_size <= h2_connection.MAX_ENCODER_TABLE


async def test_a_client_may_want_no_table_at_all(autojump_clock: trio.testing.MockClock) -> None:
    async with connected(client_settings={SettingCodes.HEADER_TABLE_SIZE: 0}) as peers:
        for _ in range(3):
            assert (await peers.client.call(ECHO, b"on")).messages == [b"on"]
        assert peers.connection._h2.response_headers.encoder.header_table_size == 0


# Windows.


async def test_windows_of_one_byte(autojump_clock: trio.testing.MockClock) -> None:
    """A response in a frame for each byte: each costs the client a frame, and too many of those a second cut it off."""
    limits = ConnectionLimits(max_control_frames=100)
    window = {SettingCodes.INITIAL_WINDOW_SIZE: 0}
    async with connected(limits, client_settings=window, acknowledges=False) as peers:
        stream = await peers.client.start_call(ECHO, bytes(10_000))
        with contextlib.suppress(trio.BrokenResourceError):
            for _ in range(500):
                peers.client.h2.increment_flow_control_window(1, stream)
                await peers.client.flush()
                await trio.testing.wait_all_tasks_blocked()
        await expect_cut_off(peers, "max_control_frames")


async def test_a_window_that_never_opens(autojump_clock: trio.testing.MockClock) -> None:
    async with connected(client_settings={SettingCodes.INITIAL_WINDOW_SIZE: 0}) as peers:
        response = await peers.client.call(ECHO, b"x")
        assert response.reset == ErrorCodes.CANCEL
        assert trio.current_time() == pytest.approx(60, abs=1)
        assert peers.counts == {"send_timeout": 1}


async def test_windows_that_overflow_end_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        await send_frames(peers, WindowUpdateFrame(0, window_increment=2**31 - 1))
        await peers.client.read_to_end()
        assert [goaway.error_code for goaway in peers.client.goaways] == [ErrorCodes.FLOW_CONTROL_ERROR]


async def test_more_data_than_the_window(autojump_clock: trio.testing.MockClock) -> None:
    limits = ConnectionLimits(stream_window=65535, connection_window=65535)
    async with connected(limits) as peers:
        stream = await peers.client.open("/test.Test/Deaf")
        await send_frames(peers, *[DataFrame(stream, bytes(16_384))] * 8)
        await peers.client.read_to_end()
        assert [goaway.error_code for goaway in peers.client.goaways] == [ErrorCodes.FLOW_CONTROL_ERROR]


# Messages.


@pytest.mark.parametrize("length", [2**31, 2**32 - 1])
async def test_a_message_that_promises_much(length: int, autojump_clock: trio.testing.MockClock) -> None:
    """Refused by its prefix; nothing is set aside for it."""
    async with connected() as peers:
        stream = await peers.client.open(ECHO)
        await peers.client.send(stream, b"\0" + struct.pack(">I", length) + b"little")
        assert (await peers.client.finish(stream)).status == RESOURCE_EXHAUSTED
        assert peers.counts == {"max_message_size": 1}


async def test_messages_on_many_calls_share_a_limit(autojump_clock: trio.testing.MockClock) -> None:
    """The one that passes it is refused; the others go on, and make room when they end."""
    limits = ConnectionLimits(max_message_size=100_000, max_receive_memory=150_000)
    async with connected(limits) as peers:
        first = await peers.client.open(ECHO)
        await peers.client.send(first, framed(bytes(90_000))[:-1])
        second = await peers.client.open(ECHO)
        await peers.client.send(second, framed(bytes(90_000))[:-1])
        response = await peers.client.finish(second)
        assert response.status == RESOURCE_EXHAUSTED
        assert "hold more than the server's limit of 150000 bytes" in response.message
        await peers.client.send(first, b"\0", end=True)
        assert (await peers.client.finish(first)).messages == [bytes(90_000)]
        for _ in range(5):
            assert (await peers.client.call(ECHO, bytes(99_000))).status == 0
        assert peers.counts == {"max_receive_memory": 1}
        assert peers.connection._calls.memory.left == 150_000


async def test_calls_without_messages_share_the_limit_too(autojump_clock: trio.testing.MockClock) -> None:
    """Each costs its client some bytes, and the server some kilobytes."""
    async with connected(ConnectionLimits(max_receive_memory=10 * CALL_MEMORY)) as peers:
        opened = [await peers.client.open(CHAT) for _ in range(10)]
        refused = await peers.client.finish(await peers.client.open(CHAT))
        assert refused.status == RESOURCE_EXHAUSTED
        assert peers.counts == {"max_receive_memory": 1}
        for stream in opened[:3]:
            await peers.client.send(stream, b"", end=True)
            assert (await peers.client.finish(stream)).status == 0
        assert (await peers.client.call(ECHO, b"")).status == 0


async def test_a_message_counts_until_its_call_has_ended(autojump_clock: trio.testing.MockClock) -> None:
    """A slow model must not make the server hold more than the limit."""
    limits = ConnectionLimits(max_message_size=100_000, max_receive_memory=150_000)
    async with connected(limits) as peers:
        waiting = await peers.client.start_call(WAIT, bytes(90_000))
        await trio.testing.wait_all_tasks_blocked()
        assert (await peers.client.call(ECHO, bytes(90_000))).status == RESOURCE_EXHAUSTED
        peers.calls.gate.set()
        assert (await peers.client.finish(waiting)).status == 0
        assert (await peers.client.call(ECHO, bytes(90_000))).status == 0
        assert peers.connection._calls.memory.left == 150_000


async def test_a_stream_lets_each_message_go(autojump_clock: trio.testing.MockClock) -> None:
    """However much goes over it in all."""
    async with connected(ConnectionLimits(max_receive_memory=150_000)) as peers:
        stream = await peers.client.open(CHAT)
        for number in range(10):
            await peers.client.send(stream, framed(bytes(90_000)))
            while len(peers.client.responses[stream].data) < (number + 1) * 90_005:
                await peers.client.read()
        await peers.client.send(stream, b"", end=True)
        assert len((await peers.client.finish(stream)).messages) == 10
        assert peers.connection._calls.memory.left == 150_000


@pytest.mark.slow
@pytest.mark.parametrize("inflated", [1_000_000, 50_000_000])
async def test_what_is_inflated_counts_too(inflated: int) -> None:
    """Bombs on several calls at once; the large ones are inflated in a thread."""
    limits = ConnectionLimits(max_message_size=2 * inflated, max_receive_memory=inflated + 200_000)
    bomb = gzip.compress(bytes(inflated))
    async with connected(limits) as peers:

        async def start() -> int:
            stream = await peers.client.open(WAIT, {"grpc-encoding": "gzip"})
            await peers.client.send(stream, framed(bomb, flag=1), end=True)
            return stream

        first = await start()
        await peers.calls.wait_started()
        refused = await peers.client.finish(await start())
        assert refused.status == RESOURCE_EXHAUSTED
        assert "requests in progress on this connection" in refused.message
        assert peers.counts == {"max_receive_memory": 1}
        peers.client.h2.reset_stream(first)
        await peers.client.flush()
        await trio.testing.wait_all_tasks_blocked()
        assert peers.connection._calls.memory.left == inflated + 200_000


async def test_memory_is_given_back_on_every_way_out(autojump_clock: trio.testing.MockClock) -> None:
    async with connected(ConnectionLimits(receive_timeout=5)) as peers:
        client = peers.client
        whole = peers.connection._calls.memory.left
        reset = await client.start_call(WAIT, bytes(50_000))
        half = await client.open(ECHO)
        await client.send(half, framed(bytes(50_000))[:30_000])
        early = await client.open("/test.Test/Early")
        await client.send(early, framed(bytes(50_000)))
        assert (await client.finish(half)).status == DEADLINE_EXCEEDED
        client.h2.reset_stream(reset)
        await client.flush()
        await client.call(ECHO, bytes(10))
        await client.call("/test.Test/Defect", bytes(50_000))
        bad = await client.open(ECHO, {"grpc-encoding": "gzip"})
        await client.send(bad, framed(bytes(50_000), flag=1), end=True)
        await client.finish(bad)
        await trio.testing.wait_all_tasks_blocked()
        assert peers.connection._calls.memory.left == whole


async def test_windows_are_given_back_on_every_way_out(autojump_clock: trio.testing.MockClock) -> None:
    """Refused messages do not eat what later calls may send."""
    limits = ConnectionLimits(
        max_message_size=100_000, max_receive_memory=80_000, stream_window=200_000, connection_window=200_000
    )
    async with connected(limits) as peers:
        for _ in range(20):
            response = await peers.client.call(ECHO, bytes(90_000))
            assert response.status == RESOURCE_EXHAUSTED
        assert (await peers.client.call(ECHO, bytes(60_000))).status == 0
