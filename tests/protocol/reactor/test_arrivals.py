"""Connections that come from elsewhere than the edge's own sockets."""

from __future__ import annotations

import socket
from collections import Counter

import trio

from protocol.reactor.arrivals import HandedOver, Listening


class Served:
    """What was served, and how; each connection is closed."""

    def __init__(self) -> None:
        self.calls: list[tuple[str | None, bool]] = []

    async def __call__(
        self, stream: trio.SocketStream, /, *, peer: str | None = None, is_too_many: bool = False
    ) -> None:
        self.calls.append((peer, is_too_many))
        await stream.aclose()


async def closed(end: socket.socket) -> None:
    """Returns once the other end is closed."""
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(end))
    async with stream:
        assert await stream.receive_some() == b""


async def test_those_that_came_before_are_served_first() -> None:
    ended: list[int] = []
    arrivals, served = HandedOver(("h", 1), lambda: ended.append(1)), Served()
    pairs = [socket.socketpair() for _ in range(3)]
    arrivals.put(pairs[0][0], "a:1")
    async with trio.open_nursery() as connections, trio.open_nursery() as accepting:
        await accepting.start(arrivals.run, served, connections)
        arrivals.put(pairs[1][0], "b:2", is_too_many=True)
        arrivals.put(pairs[2][0])
        for _, end in pairs:
            await closed(end)
        await arrivals.end()
        accepting.cancel_scope.cancel()
    assert sorted(served.calls, key=str) == [("a:1", False), ("b:2", True), (None, False)]
    assert len(ended) == 2, "one too many was never open"


async def test_one_that_comes_too_late_is_closed() -> None:
    arrivals, served = HandedOver(("h", 1)), Served()
    ours, theirs = socket.socketpair()
    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            await accepting.start(arrivals.run, served, connections)
            accepting.cancel_scope.cancel()
        arrivals.put(ours)
        await closed(theirs)
    assert served.calls == []


class Turns(trio.abc.Instrument):
    """Counts those of the loop."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_the_loop_turns_while_many_begin() -> None:
    """They have requests with them, which take their time; others are answered in between."""
    turns, begun = Turns(), Counter[int]()

    async def serve(stream: trio.SocketStream, *, peer: str | None = None, is_too_many: bool = False) -> None:
        begun[turns.count] += 1
        await stream.aclose()

    arrivals = HandedOver(("h", 1))
    pairs = [socket.socketpair() for _ in range(50)]
    trio.lowlevel.add_instrument(turns)
    async with trio.open_nursery() as connections, trio.open_nursery() as accepting:
        await accepting.start(arrivals.run, serve, connections)
        for ours, _ in pairs:
            arrivals.put(ours)
        for _, theirs in pairs:
            await closed(theirs)
        accepting.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(turns)
    assert begun.total() == len(pairs)
    assert max(begun.values()) <= 4


async def test_those_that_have_not_begun_are_closed_at_the_end() -> None:
    ended: list[int] = []
    arrivals, served = HandedOver(("h", 1), lambda: ended.append(1)), Served()
    pairs = [socket.socketpair() for _ in range(50)]
    async with trio.open_nursery() as connections, trio.open_nursery() as accepting:
        await accepting.start(arrivals.run, served, connections)
        for ours, _ in pairs:
            arrivals.put(ours)
        connections.cancel_scope.cancel()
        accepting.cancel_scope.cancel()
    for _, theirs in pairs:
        await closed(theirs)
    assert len(served.calls) < len(pairs)
    assert len(ended) == len(pairs), "each is told of once"


async def test_listening_tells_where() -> None:
    arrivals, served = await Listening.open("127.0.0.1", 0), Served()
    async with trio.open_nursery() as connections, trio.open_nursery() as accepting:
        await accepting.start(arrivals.run, served, connections)
        stream = await trio.open_tcp_stream(*arrivals.address)
        async with stream:
            assert await stream.receive_some() == b""
        accepting.cancel_scope.cancel()
    assert served.calls == [(None, False)]
