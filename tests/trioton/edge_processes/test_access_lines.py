"""Lines of an edge's access log on their way to the core: in order, together, and bounded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from trioton.edge_processes import access_lines
from trioton.edge_processes.access_lines import LineSender
from trioton.edge_processes.channel import MOST_BYTES, Channel, channel_pair
from trioton.edge_processes.messages import AccessLines, ToCore, ToEdge


@pytest.fixture
def ends() -> Iterator[tuple[Channel[ToCore, ToEdge], Channel[ToEdge, ToCore]]]:
    its, own = channel_pair()
    edge: Channel[ToCore, ToEdge] = Channel(its, ToEdge)
    core: Channel[ToEdge, ToCore] = Channel(own, ToCore)
    yield edge, core
    its.close()
    own.close()


Ends = tuple[Channel[ToCore, ToEdge], Channel[ToEdge, ToCore]]


async def received(core: Channel[ToEdge, ToCore], size: int) -> list[AccessLines]:
    found: list[AccessLines] = []
    while sum(len(each.data) for each in found) < size:
        message, _ = await core.receive()
        assert isinstance(message, AccessLines)
        found.append(message)
    return found


async def test_lines_of_one_turn_go_together(ends: Ends) -> None:
    edge, core = ends
    sender = LineSender(edge)
    lines = [b"%d\n" % number for number in range(20_000)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(edge.write)
        nursery.start_soon(sender.run)
        for line in lines:
            sender.put(line)
        messages = await received(core, sum(map(len, lines)))
        nursery.cancel_scope.cancel()
    assert b"".join(each.data for each in messages).splitlines(keepends=True) == lines
    assert all(len(each.data) <= MOST_BYTES // 2 for each in messages)
    assert len(messages) < 20


async def test_what_finds_no_room_is_counted(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_lines, "MOST_WAITING", 10)
    edge, core = ends
    sender = LineSender(edge)
    for _ in range(5):
        sender.put(b"1234\n")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(edge.write)
        await sender.flush()
        sender.put(b"1234\n")
        await sender.flush()
        messages = await received(core, 15)
        nursery.cancel_scope.cancel()
    assert [(each.data, each.lost) for each in messages] == [(b"1234\n1234\n", 3), (b"1234\n", 0)]
