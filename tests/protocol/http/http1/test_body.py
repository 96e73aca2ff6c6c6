"""Long bodies: however fast one comes, others run while it is received and joined."""

from __future__ import annotations

import sys
from itertools import pairwise

import pytest
import trio

from protocol.http.body import BodyLimit
from protocol.http.errors import BodyTooLarge
from protocol.http.http1.body import IncomingBody
from protocol.http.http1.protocol import Http1Protocol
from protocol.limits.request_memory import RequestMemory, RequestShare
from protocol.sync.turns import RECEIVED_AT_ONCE, RECEIVED_IN_A_TURN

MEGABYTE = 1 << 20


class Flood:
    """A client that has always sent more; `seen` are how many bytes have come at each turn of the loop."""

    def __init__(self, head: bytes, body: bytes) -> None:
        self.protocol = Http1Protocol(1000)
        self.protocol.receive(head)
        self.protocol.next_event()
        self._body = memoryview(body)
        self.came = 0
        self.seen: list[int] = []

    async def receive(self) -> None:
        await trio.lowlevel.checkpoint()
        piece = self._body[self.came : self.came + 65536]
        self.came += len(piece)
        self.protocol.receive(bytes(piece))

    async def receive_into(self, view: memoryview) -> int:
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

    async def read(self) -> bytes:
        limit = BodyLimit(sys.maxsize, lambda size, most: BodyTooLarge("too long", "max_body_size"))
        share = RequestShare(RequestMemory(sys.maxsize))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.count)
            read = await IncomingBody(self.protocol, self, limit, share, pause_seconds=60).read()
            nursery.cancel_scope.cancel()
        return bytes(read)


def sized(size: int) -> Flood:
    return Flood(
        f"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode(), bytes(range(256)) * (size // 256)
    )


async def test_the_loop_turns_while_a_long_body_is_received() -> None:
    size = 8 * MEGABYTE
    flood = sized(size)
    assert await flood.read() == bytes(range(256)) * (size // 256)
    seen = [0, *flood.seen, size]
    steps = [after - before for before, after in pairwise(seen)]
    assert max(steps) <= RECEIVED_AT_ONCE + RECEIVED_IN_A_TURN, "the first part, and one of a turn at most"
    assert len(seen) > size // (RECEIVED_AT_ONCE + RECEIVED_IN_A_TURN)


async def test_a_body_of_usual_size_takes_no_turn() -> None:
    flood = sized(600 * 1024)
    with trio.CancelScope() as scope:
        scope.cancel()  # at the first checkpoint
        limit = BodyLimit(sys.maxsize, lambda size, most: BodyTooLarge("too long", "max_body_size"))
        share = RequestShare(RequestMemory(sys.maxsize))
        assert len(await IncomingBody(flood.protocol, flood, limit, share, pause_seconds=60).read()) == 600 * 1024
    assert not scope.cancelled_caught


@pytest.mark.parametrize("size", [MEGABYTE // 2, 5 * MEGABYTE])
async def test_a_long_body_in_chunks_is_joined(size: int) -> None:
    body = bytes(range(256)) * (size // 256)
    framed = b"".join(b"%x\r\n%b\r\n" % (50000, body[at : at + 50000]) for at in range(0, size - size % 50000, 50000))
    rest = body[size - size % 50000 :]
    framed += b"%x\r\n%b\r\n0\r\n\r\n" % (len(rest), rest)
    flood = Flood(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n", framed)
    assert await flood.read() == body
