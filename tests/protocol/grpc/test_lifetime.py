"""How a connection asks for signs of life, retires and ends, on the wire."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing
from h2.errors import ErrorCodes

from protocol.grpc.connection.keepalive import RETIRING_SECONDS
from protocol.grpc.settings import ConnectionLimits, Keepalive
from tests.protocol.grpc.client import framed
from tests.protocol.grpc.harness import Peers, connected

REFUSED_STREAM = 7
ECHO, WAIT, CHAT = "/test.Test/Echo", "/test.Test/Wait", "/test.Test/Chat"


async def read_all(peers: Peers, nursery: trio.Nursery) -> None:
    nursery.start_soon(peers.client.read_to_end)
    await trio.testing.wait_all_tasks_blocked()


async def test_a_peer_that_answers_pings_stays(autojump_clock: trio.testing.MockClock) -> None:
    limits = ConnectionLimits(keepalive=Keepalive(time=10, timeout=3, max_pings_without_data=0))
    async with connected(limits) as peers, trio.open_nursery() as nursery:
        stream = await peers.client.open(CHAT)
        await read_all(peers, nursery)
        await trio.sleep(1000)
        assert not peers.client.is_closed
        await peers.client.send(stream, framed(b"on"), end=True)
        await trio.testing.wait_all_tasks_blocked()
        assert peers.client.responses[stream].messages == [b"on"]
        assert peers.counts == {}
        nursery.cancel_scope.cancel()


async def test_a_peer_that_answers_none_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    limits = ConnectionLimits(keepalive=Keepalive(time=10, timeout=3))
    async with connected(limits) as peers:
        await peers.client.start_call(WAIT, b"x")
        await peers.has_ended.wait()
        assert trio.current_time() == pytest.approx(14, abs=0.1)  # with the time to say goodbye
        assert peers.calls.cancelled == 1
        assert peers.counts == {"keepalive_timeout": 1}


async def test_too_many_pings_are_answered_with_goaway(autojump_clock: trio.testing.MockClock) -> None:
    """gRPC's clients know these words, and ping less often from then on."""
    async with connected() as peers:
        stream = await peers.client.start_call(WAIT, b"x")
        for _ in range(4):
            peers.client.h2.ping(bytes(8))
        await peers.client.flush()
        await peers.client.read_to_end()
        (goaway,) = peers.client.goaways
        assert (goaway.error_code, goaway.additional_data) == (ErrorCodes.ENHANCE_YOUR_CALM, b"too_many_pings")
        assert goaway.last_stream_id == stream
        assert peers.counts == {"http2_max_ping_strikes": 1}


async def test_pings_between_responses_are_welcome(autojump_clock: trio.testing.MockClock) -> None:
    """Clients measure the line so, while data comes."""
    async with connected() as peers:
        for _ in range(20):
            await peers.client.call(ECHO, b"x")
            peers.client.h2.ping(bytes(8))
            peers.client.h2.ping(bytes(8))
            await peers.client.flush()
        assert (await peers.client.call(ECHO, b"on")).messages == [b"on"]


async def test_pings_within_a_large_response_are_welcome(autojump_clock: trio.testing.MockClock) -> None:
    """Each time some of it has come."""
    async with connected() as peers:
        stream = await peers.client.start_call(ECHO, bytes(1 << 20))
        response = peers.client.responses[stream]
        while not response.has_ended:
            came = len(response.data)
            await peers.client.read()
            if len(response.data) > came:
                peers.client.h2.ping(bytes(8))
                await peers.client.flush()
        assert response.messages == [bytes(1 << 20)]
        assert peers.counts == {}


AGED = ConnectionLimits(max_connection_age=100, max_connection_idle=math.inf, keepalive=Keepalive(time=math.inf))


async def test_an_old_connection_finishes_its_calls(autojump_clock: trio.testing.MockClock) -> None:
    """A call that was begun before the client heard of it is served; once it has heard, none is."""
    async with connected(AGED) as peers:
        first = await peers.client.start_call(WAIT, b"first")
        await trio.testing.wait_all_tasks_blocked()
        peers.connection.retire()
        late = await peers.client.start_call(ECHO, b"late")  # it has not read the GOAWAY
        assert (await peers.client.finish(late)).messages == [b"late"]
        assert peers.client.goaways[0].last_stream_id == 2**31 - 1
        while len(peers.client.goaways) < 2:
            await peers.client.read()
        assert peers.client.goaways[1].last_stream_id == late
        refused = await peers.client.start_call(ECHO, b"refused")
        assert (await peers.client.finish(refused)).reset == REFUSED_STREAM
        assert not peers.has_ended.is_set()
        peers.calls.gate.set()
        assert (await peers.client.finish(first)).messages == [b"first"]
        await peers.client.read_to_end()
        await peers.has_ended.wait()
        assert peers.counts == {}


async def test_a_client_that_does_not_listen_is_refused_after_a_while(autojump_clock: trio.testing.MockClock) -> None:
    async with connected(AGED) as peers:
        await peers.client.start_call(WAIT, b"x")
        await trio.sleep(110 + RETIRING_SECONDS)
        refused = await peers.client.start_call(ECHO, b"refused")
        assert (await peers.client.finish(refused)).reset == REFUSED_STREAM


async def test_a_stream_goes_on_until_its_grace_is_over(autojump_clock: trio.testing.MockClock) -> None:
    """Unlike at the end of the server, nothing is said to it."""
    limits = ConnectionLimits(max_connection_age=100, max_connection_age_grace=50, keepalive=Keepalive(time=math.inf))
    async with connected(limits) as peers, trio.open_nursery() as nursery:
        stream = await peers.client.open(CHAT)
        await peers.client.send(stream, framed(b"a"))
        await read_all(peers, nursery)
        await trio.sleep(130)
        await peers.client.send(stream, framed(b"b"))
        await trio.sleep(1)
        assert peers.client.responses[stream].messages == [b"a", b"b"]
        await peers.has_ended.wait()
        assert 140 <= trio.current_time() <= 162
        assert not peers.client.responses[stream].has_ended


async def test_an_idle_connection_is_closed(autojump_clock: trio.testing.MockClock) -> None:
    limits = ConnectionLimits(max_connection_idle=60)
    async with connected(limits) as peers:
        await trio.sleep(50)
        await peers.client.call(ECHO, b"x")
        await peers.client.read_to_end()
        assert trio.current_time() == pytest.approx(110, abs=0.1)
        assert [goaway.error_code for goaway in peers.client.goaways] == [0, 0]
        assert peers.counts == {"max_connection_idle": 1}


async def test_draining_a_connection_that_retires(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as peers:
        await peers.client.start_call(WAIT, b"x")
        await trio.testing.wait_all_tasks_blocked()
        peers.connection.retire()
        peers.connection.drain()
        peers.calls.gate.set()
        await peers.client.read_to_end()
        await peers.has_ended.wait()
        assert peers.calls.cancelled == 0
