"""The socket pair between the core's process and an edge process."""

from __future__ import annotations

import socket
from typing import TypeAlias

import pytest
import trio

from trioton.edge_processes.channel import MOST_QUEUED, Channel, ChannelFull, ChannelLost, channel_pair
from trioton.edge_processes.messages import Connect, Ping, Progress, Ready, Stop, ToCore, ToEdge

Ends: TypeAlias = tuple[Channel[ToEdge, ToCore], Channel[ToCore, ToEdge], socket.socket]


@pytest.fixture
def ends() -> Ends:
    ours, theirs = channel_pair()
    return Channel(ours, ToCore), Channel(theirs, ToEdge), theirs


async def test_messages_come_one_by_one_and_with_their_sockets(ends: Ends) -> None:
    core, edge, _ = ends
    left, right = socket.socketpair()
    assert core.try_send(Connect("http"), left)
    assert core.try_send(Ping())
    left.close()
    message, passed = await edge.receive()
    assert message == Connect("http")
    assert passed is not None
    with passed, right:
        assert not passed.get_inheritable()
        right.send(b"hello")
        passed.setblocking(True)
        assert passed.recv(5) == b"hello"
    assert await edge.receive() == (Ping(), None)
    core.close()
    edge.close()


async def test_what_is_queued_is_sent_in_order_and_its_sockets_are_closed_here(ends: Ends) -> None:
    core, edge, _ = ends
    left, right = socket.socketpair()
    edge.send(Ready())
    edge.send(Progress(1, {"http": 2}), left)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(edge.write)
        assert await core.receive() == (Ready(), None)
        message, passed = await core.receive()
        assert message == Progress(1, {"http": 2})
        assert passed is not None
        passed.close()
        nursery.cancel_scope.cancel()
    assert left.fileno() == -1
    assert right.recv(1) == b""
    right.close()
    core.close()
    edge.close()


async def test_a_peer_that_does_not_read_holds_nobody(ends: Ends) -> None:
    core, edge, _ = ends
    sent = 0
    while core.try_send(Connect("http")):
        sent += 1
        assert sent < 100_000
    for _ in range(MOST_QUEUED):
        core.send(Stop())
    with pytest.raises(ChannelFull):
        core.send(Stop())
    core.close()
    edge.close()


async def test_the_end_of_the_peer_and_nonsense_end_the_channel(ends: Ends) -> None:
    core, _, theirs = ends
    theirs.send(b"\xc1")
    with pytest.raises(ChannelLost):
        await core.receive()
    theirs.close()
    with pytest.raises(ChannelLost):
        await core.receive()
    with pytest.raises(ChannelLost):
        core.try_send(Ping())
    core.close()
