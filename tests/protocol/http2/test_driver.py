"""A connection is read and written until its peer goes or it is stopped, and ends so that its peer loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, pairwise
from typing import Any

import pytest
import trio
import trio.testing
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, Event, RemoteSettingsChanged

from protocol.http2 import events
from protocol.http2.connection import ServerConnection
from protocol.http2.driver import ConnectionDriver
from protocol.http2.flood_limits import FloodLimits
from protocol.http2.frames import ACK, PING, frame
from protocol.http2.output import FrameOutput
from protocol.http2.reader import Http2Reader
from protocol.limits.request_memory import RequestMemory
from protocol.reactor.transport import wire_over
from tests.protocol.http2.reference import LIMITS

GOODBYE_SECONDS = 3.0


class Owner:
    """A connection without requests; `run` is what an edge's connection does with its driver.

    Attributes:
        bursts: how many events had happened at the end of each burst.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.happened: list[events.Event] = []
        self.bursts: list[int] = []
        self.is_refusing = False
        h2 = ServerConnection(**LIMITS)
        out = FrameOutput(
            h2,
            wire_over(stream),
            lambda name: None,
            RequestMemory(1 << 20),
            send_timeout=60,
            connection_window=LIMITS["connection_window"],
        )
        kinds = (events.RemoteSettingsChanged, events.IgnoredFrame, events.WindowUpdated, events.PingAckReceived)
        on_event: dict[type[events.Event], Callable[[Any], None]] = dict.fromkeys(kinds, self.happened.append)
        floods = FloodLimits(out, max_control_frames=100, max_stream_resets=100)
        reader = Http2Reader(wire_over(stream), None, out, h2, floods, self, on_event)
        self.driver = ConnectionDriver(h2, reader, out, goodbye_seconds=GOODBYE_SECONDS)

    async def run(self, begun: bytes = b"") -> None:
        self.driver.initiate()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.driver.write)
            self.driver.begun = begun
            await self.driver.read()
            await self.driver.finish(is_refusing=self.is_refusing)
            nursery.cancel_scope.cancel()

    def room(self, stream_id: int, size: int) -> memoryview | None:
        return None

    def fail_stream(self, stream_id: int, error: Exception) -> None:
        raise error

    def fail(self, error: Exception) -> None:
        raise error

    def flush(self) -> None:
        self.bursts.append(len(self.happened))


class Peer:
    """A client by h2."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.h2 = H2Connection(H2Configuration(client_side=True))
        self.h2.initiate_connection()

    async def read_all(self) -> list[Event]:
        """Until the server ends its direction."""
        found: list[Event] = []
        while data := await self.stream.receive_some():
            found += self.h2.receive_data(data)
        return found


def pair() -> tuple[Owner, Peer]:
    ours, theirs = trio.testing.memory_stream_pair()
    return Owner(ours), Peer(theirs)


@pytest.mark.parametrize("is_refusing", [False, True])
async def test_a_connection_that_is_stopped_says_goodbye_once(
    is_refusing: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """With a GOAWAY, unless the peer has had its last one; then the peer closes first."""
    owner, peer = pair()
    owner.is_refusing = is_refusing
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.run, peer.h2.data_to_send())
        await trio.testing.wait_all_tasks_blocked()
        owner.driver.stop()
        found = await peer.read_all()
        assert trio.current_time() == 0
        await peer.stream.aclose()
    assert [type(event) for event in found].count(RemoteSettingsChanged) == 1
    assert [type(event) for event in found].count(ConnectionTerminated) == (0 if is_refusing else 1)
    assert type(owner.happened[0]) is events.RemoteSettingsChanged
    assert trio.current_time() == 0


async def test_a_peer_that_does_not_close_is_left_after_a_while(autojump_clock: trio.testing.MockClock) -> None:
    owner, peer = pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.run, peer.h2.data_to_send())
        await trio.testing.wait_all_tasks_blocked()
        owner.driver.stop()
    assert trio.current_time() == GOODBYE_SECONDS


async def test_a_peer_that_has_gone_is_told_nothing(autojump_clock: trio.testing.MockClock) -> None:
    owner, peer = pair()
    await peer.stream.aclose()
    await owner.run()
    assert trio.current_time() == 0


async def test_a_peer_that_does_not_read_ends_the_reading(autojump_clock: trio.testing.MockClock) -> None:
    """The writer meets it, while the reader waits for more."""
    ours, theirs = trio.testing.lockstep_stream_pair()
    owner = Owner(ours)
    await owner.run()  # the first frames wait for somebody who reads them
    assert trio.current_time() == 60
    await theirs.aclose()


async def test_many_frames_are_handled_in_turns_of_the_loop(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pieces in each turn, where the time is over behind the second; what comes behind them waits for them."""
    times = count(0, 1)
    monkeypatch.setattr("protocol.http2.reader.perf_counter", lambda: next(times))
    monkeypatch.setattr("protocol.http2.reader._FRAMES_AT_ONCE", 10)
    owner, peer = pair()
    handled: list[int] = []

    begun = peer.h2.data_to_send()
    pings = b"".join(frame(PING, ACK, 0, number.to_bytes(8, "big")) for number in range(100))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.run, begun)
        await trio.testing.wait_all_tasks_blocked()
        before = len(owner.happened)
        await peer.stream.send_all(pings)
        await peer.stream.send_all(frame(PING, ACK, 0, b"behind  "))
        while len(owner.happened) < before + 101:
            handled.append(len(owner.happened))
            await trio.lowlevel.checkpoint()
        await peer.stream.aclose()
    steps = [after - earlier for earlier, after in pairwise(handled)]
    assert max(steps) <= 40  # two pieces of what has come, and two of the rest
    data = [event.ping_data for event in owner.happened if isinstance(event, events.PingAckReceived)]
    assert data == [*(number.to_bytes(8, "big") for number in range(100)), b"behind  "]


async def test_of_what_is_left_of_many_frames_less_is_handled_in_a_turn(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece seems to take 0.25 ms: seven are handled where they have come, and then three in each turn."""
    times = count(0, 0.00025)
    monkeypatch.setattr("protocol.http2.reader.perf_counter", lambda: next(times))
    owner, peer = pair()
    begun = peer.h2.data_to_send()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.run, begun)
        await trio.testing.wait_all_tasks_blocked()
        owner.bursts = [len(owner.happened)]
        await peer.stream.send_all(b"".join(frame(PING, ACK, 0, bytes(8)) for _ in range(800)))
        await trio.testing.wait_all_tasks_blocked()
        await peer.stream.aclose()
    steps = [after - earlier for earlier, after in pairwise(owner.bursts) if after > earlier]
    assert steps == [7 * 16, *[3 * 16] * 14, 16]
