"""Clients that break the protocol or flood the server harm their own connection only."""

from __future__ import annotations

import contextlib
import math

import pytest
import trio
import trio.testing
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.grpc.connection import connection as connection_module
from protocol.grpc.connection.calls import Shared
from protocol.grpc.connection.connection import Connection
from protocol.grpc.settings import ConnectionLimits, Keepalive
from protocol.http2 import output
from tests.protocol.grpc.client import REQUEST_HEADERS, Client, Response, framed
from tests.protocol.grpc.harness import (
    INVALID_ARGUMENT,
    Calls,
    connected,
)

pytestmark = pytest.mark.slow


async def test_a_protocol_error_closes_the_connection_with_a_goaway(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        await peers.client.start_call("/test.Test/Wait", b"x")
        await trio.testing.wait_all_tasks_blocked()
        await peers.client.transport.send_all(b"\0\0\1\6\0\0\0\0\0x")  # a PING of one byte
        await peers.client.read_to_end()
        assert [goaway.error_code for goaway in peers.client.goaways] == [ErrorCodes.FRAME_SIZE_ERROR]
        await peers.has_ended.wait()
        assert peers.calls.cancelled == 1


MALFORMED = {"Upper": "x", "connection": "close", "te": "gzip", "a b": "x", "x": "a\nb", ":late": "x"}


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_headers_cost_their_call_only(
    name: str, ends: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """Which is told what is wrong with them."""
    async with connected() as peers:
        other = await peers.client.start_call("/test.Test/Wait", b"on")
        config = peers.client.h2.config
        config.validate_outbound_headers = config.normalize_outbound_headers = False
        stream = await peers.client.open("/test.Test/Echo", {name: MALFORMED[name]}, end=ends)
        response = await peers.client.finish(stream)
        assert response.status == INVALID_ARGUMENT
        assert response.message.startswith("the call's headers are malformed: ")
        peers.calls.gate.set()
        assert (await peers.client.finish(other)).messages == [b"on"]
        assert peers.client.goaways == []


async def test_a_client_that_speaks_http_1_is_sent_away(autojump_clock: trio.testing.MockClock) -> None:
    client_end, server_end = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Connection(server_end, Shared({})).run)
        await client_end.send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        received = b""
        while data := await client_end.receive_some():
            received += data
        assert received  # settings and GOAWAY


async def test_a_client_that_says_nothing_is_sent_away(autojump_clock: trio.testing.MockClock) -> None:
    client_end, server_end = trio.testing.memory_stream_pair()
    await Connection(server_end, Shared({})).run()
    assert trio.current_time() == pytest.approx(
        ConnectionLimits().handshake_timeout + connection_module.GOODBYE_SECONDS, abs=0.1
    )
    await client_end.aclose()


async def test_a_quiet_client_stays(autojump_clock: trio.testing.MockClock) -> None:
    """Only the handshake is timed."""
    limits = ConnectionLimits(max_connection_idle=math.inf, keepalive=Keepalive(time=math.inf))
    async with connected(limits) as peers:
        await peers.client.read()
        await trio.sleep(10_000)
        assert (await peers.client.call("/test.Test/Echo", b"on")).messages == [b"on"]


async def test_too_many_resets_in_a_second_close_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    async with connected(ConnectionLimits(max_stream_resets=50)) as peers:
        client = peers.client
        for _ in range(51):
            stream = await client.start_call("/test.Test/Wait", b"x")
            client.h2.reset_stream(stream)
        await client.flush()
        await client.read_to_end()
        assert [goaway.error_code for goaway in client.goaways] == [ErrorCodes.ENHANCE_YOUR_CALM]
        assert peers.calls.cancelled == peers.calls.started


async def test_resets_that_take_their_time_are_no_misbehaviour(autojump_clock: trio.testing.MockClock) -> None:
    async with connected(ConnectionLimits(max_stream_resets=5)) as peers:
        for _ in range(30):
            stream = await peers.client.start_call("/test.Test/Wait", b"x")
            peers.client.h2.reset_stream(stream)
            await peers.client.flush()
            await trio.sleep(0.5)
        assert (await peers.client.call("/test.Test/Echo", b"on")).messages == [b"on"]


async def test_more_streams_than_allowed_are_refused(autojump_clock: trio.testing.MockClock) -> None:
    """They only: the client may not have read the settings yet, and can try again."""
    async with connected(ConnectionLimits(max_concurrent_streams=3)) as peers:
        streams = [await peers.client.start_call("/test.Test/Wait", b"x") for _ in range(5)]
        responses = [peers.client.responses[stream] for stream in streams]
        while responses[4].reset is None:
            await peers.client.read()
        assert [response.reset for response in responses] == [None, None, None, 7, 7]  # REFUSED_STREAM
        peers.calls.gate.set()
        for stream in streams[:3]:
            assert (await peers.client.finish(stream)).status == 0
        assert peers.counts == {"max_concurrent_streams": 2}
        assert (await peers.client.call("/test.Test/Echo", b"on")).messages == [b"on"]


async def test_a_client_that_opens_too_many_all_the_time_is_cut_off(autojump_clock: trio.testing.MockClock) -> None:
    async with connected(ConnectionLimits(max_concurrent_streams=1, max_control_frames=20)) as peers:
        with contextlib.suppress(trio.BrokenResourceError):
            for _ in range(30):
                await peers.client.start_call("/test.Test/Wait", b"x")
        await peers.client.read_to_end()
        assert [goaway.error_code for goaway in peers.client.goaways] == [ErrorCodes.ENHANCE_YOUR_CALM]
        assert peers.counts["max_control_frames"] == 1


async def test_far_more_streams_than_allowed_in_one_burst_cost_those_within_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """With the limits that are the default: nobody has told the client yet."""
    async with connected() as peers:
        limit = ConnectionLimits().max_concurrent_streams
        client = peers.client
        client.h2.remote_settings.update({SettingCodes.MAX_CONCURRENT_STREAMS: 4 * limit})
        client.h2.remote_settings.acknowledge()
        headers = [*{**REQUEST_HEADERS, ":path": "/test.Test/Wait"}.items()]
        streams = [2 * n + 1 for n in range(4 * limit)]
        for stream in streams:
            client.responses[stream] = Response()
            client.h2.send_headers(stream, headers)
            client.h2.send_data(stream, framed(b"x"), end_stream=True)
        await client.flush()
        while client.responses[streams[-1]].reset is None:
            await client.read()
        assert {client.responses[stream].reset for stream in streams[limit:]} == {ErrorCodes.REFUSED_STREAM}
        peers.calls.gate.set()
        for stream in streams[:limit]:
            assert (await client.finish(stream)).status == 0
        assert peers.counts == {"max_concurrent_streams": 3 * limit}
        assert not client.goaways


async def test_pings_are_answered_but_not_without_end(autojump_clock: trio.testing.MockClock) -> None:
    """A client that sends PINGs and reads no answer is not read any more."""
    limits = ConnectionLimits(max_control_frames=1_000_000, keepalive=Keepalive(max_ping_strikes=0))
    async with connected(limits, lockstep=True) as peers:
        ping = b"\0\0\x08\6\0\0\0\0\0" + bytes(8)
        sent = 0
        with trio.move_on_after(10):
            while True:
                await peers.client.transport.send_all(ping * 1000)
                sent += 1000
        assert 1000 <= sent * 17 < 4 * output.MAX_CONTROL_BACKLOG


@given(st.binary(max_size=300))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_after_the_handshake_ends_the_connection_at_worst(garbage: bytes) -> None:
    """Whatever bytes come, `run` returns without an exception."""

    async def run() -> None:
        async with connected() as peers:
            stream = await peers.client.open("/test.Test/Chat")
            await peers.client.send(stream, framed(b"x"))
            await peers.client.transport.send_all(garbage)
            await trio.testing.wait_all_tasks_blocked()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


@given(position=st.integers(0, 400), bits=st.integers(1, 255))
@settings(max_examples=60, deadline=None)
def test_a_flipped_byte_ends_the_connection_at_worst(position: int, bits: int) -> None:
    """One wrong byte anywhere in good traffic never becomes an exception or a hang."""
    recorder = Client(trio.testing.memory_stream_pair()[0])
    recorder.h2.initiate_connection()
    headers: dict[str, str] = {":method": "POST", ":scheme": "http", ":path": "/test.Test/Chat", ":authority": "x"}
    for stream in (1, 3, 5):
        recorder.h2.send_headers(stream, [*headers.items(), ("content-type", "application/grpc")])
        recorder.h2.send_data(stream, framed(b"hello") * 2, end_stream=True)
    traffic = bytearray(recorder.h2.data_to_send())
    traffic[position % len(traffic)] ^= bits

    async def run() -> None:
        client_end, server_end = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Connection(server_end, Shared(Calls().mapping())).run)
            await client_end.send_all(bytes(traffic))
            await trio.testing.wait_all_tasks_blocked()
            await client_end.aclose()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
