"""Long bodies: however fast one comes, others run while it is received and joined."""

from __future__ import annotations

import sys
from itertools import pairwise

import pytest
import trio

from protocol.errors import ServerError
from protocol.http.body import BodyLimit
from protocol.http.errors import BodyTooLarge
from protocol.http.http1.body import IncomingBody
from protocol.http.http1.events import Content
from protocol.http.http1.protocol import Http1Protocol
from protocol.limits.body_rooms import MOST_ROOMS
from protocol.limits.request_memory import RequestMemory, RequestShare
from protocol.sync.turns import RECEIVED_AT_ONCE, RECEIVED_IN_A_TURN

MEGABYTE = 1 << 20


class Flood:
    """A client that has always sent more; `seen` are how many bytes have come at each turn of the loop. Of the body
    `at_once` bytes are there with the head."""

    def __init__(self, head: bytes, body: bytes, at_once: int = 0) -> None:
        self.protocol = Http1Protocol(1000)
        self.protocol.receive(head)
        self.protocol.next_event()
        self._body = memoryview(body)
        self._at_once = at_once
        self.waits = 0
        self.came = 0
        self.seen: list[int] = []

    async def receive(self) -> None:
        await trio.lowlevel.checkpoint()
        piece = self._body[self.came : self.came + 65536]
        self.came += len(piece)
        self.protocol.receive(bytes(piece))

    async def receive_into(self, view: memoryview) -> int:
        self.waits += 1
        return self._fill(view)

    def receive_into_at_once(self, view: memoryview) -> int:
        return self._fill(view[: self._at_once])

    def _fill(self, view: memoryview) -> int:
        piece = self._body[self.came : self.came + len(view)]
        view[: len(piece)] = piece
        self.came += len(piece)
        return len(piece)

    async def send_continue(self) -> None:
        pass

    async def count(self) -> None:
        while True:
            self.seen.append(self.came)
            await trio.lowlevel.checkpoint()

    async def read(self, memory: RequestMemory | None = None) -> bytes:
        limit = BodyLimit(sys.maxsize, lambda size, most: BodyTooLarge("too long", "max_body_size"))
        share = RequestShare(memory or RequestMemory(sys.maxsize))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.count)
            read = await IncomingBody(self.protocol, self, limit, share, pause_seconds=60).read()
            nursery.cancel_scope.cancel()
        return bytes(read)


def sized(size: int, at_once: int = 0) -> Flood:
    head = f"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode()
    return Flood(head, bytes(range(256)) * (size // 256), at_once)


async def test_the_loop_turns_while_a_long_body_is_received() -> None:
    size = 8 * MEGABYTE
    flood = sized(size)
    assert await flood.read() == bytes(range(256)) * (size // 256)
    seen = [0, *flood.seen, size]
    steps = [after - before for before, after in pairwise(seen)]
    assert max(steps) <= RECEIVED_AT_ONCE + RECEIVED_IN_A_TURN, "the first part, and one of a turn at most"
    assert len(seen) > size // (RECEIVED_AT_ONCE + RECEIVED_IN_A_TURN)


async def test_a_long_body_comes_without_room_for_it() -> None:
    """Other requests have announced as much as is reserved for bodies that come."""
    memory = RequestMemory(sys.maxsize)
    memory.rooms.count = MOST_ROOMS
    assert await sized(2 * MEGABYTE).read(memory) == bytes(range(256)) * (2 * MEGABYTE // 256)
    assert memory.held == 2 * MEGABYTE


async def test_a_body_of_usual_size_takes_no_turn() -> None:
    flood = sized(600 * 1024)
    with trio.CancelScope() as scope:
        scope.cancel()  # at the first checkpoint
        limit = BodyLimit(sys.maxsize, lambda size, most: BodyTooLarge("too long", "max_body_size"))
        share = RequestShare(RequestMemory(sys.maxsize))
        assert len(await IncomingBody(flood.protocol, flood, limit, share, pause_seconds=60).read()) == 600 * 1024
    assert not scope.cancelled_caught


@pytest.mark.parametrize(("at_once", "waits"), [(1, 1), (512, 1), (1023, 1), (1024, 0)])
async def test_what_has_come_with_the_head_is_not_waited_for(at_once: int, waits: int) -> None:
    flood = sized(1024, at_once)
    assert await flood.read() == bytes(range(256)) * 4
    assert flood.waits == waits
    assert not isinstance(flood.protocol.next_event(), Content), "all of it is taken"


async def test_no_more_of_a_long_body_is_taken_at_once_than_of_others() -> None:
    flood = sized(8 * MEGABYTE, 8 * MEGABYTE)
    assert await flood.read() == bytes(range(256)) * (8 * MEGABYTE // 256)
    steps = [after - before for before, after in pairwise([0, *flood.seen, 8 * MEGABYTE])]
    assert max(steps) <= RECEIVED_AT_ONCE + RECEIVED_IN_A_TURN


async def test_the_limits_hold_for_what_has_come_with_the_head() -> None:
    flood = sized(1024, 1024)
    limit = BodyLimit(1000, lambda size, most: BodyTooLarge("too long", "max_body_size"))
    share = RequestShare(RequestMemory(1000))
    with pytest.raises(ServerError):
        await IncomingBody(flood.protocol, flood, limit, share, pause_seconds=60).read()


@pytest.mark.parametrize("size", [MEGABYTE // 2, 5 * MEGABYTE])
async def test_a_long_body_in_chunks_is_joined(size: int) -> None:
    body = bytes(range(256)) * (size // 256)
    framed = b"".join(b"%x\r\n%b\r\n" % (50000, body[at : at + 50000]) for at in range(0, size - size % 50000, 50000))
    rest = body[size - size % 50000 :]
    framed += b"%x\r\n%b\r\n0\r\n\r\n" % (len(rest), rest)
    flood = Flood(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n", framed)
    assert await flood.read() == body
