"""The body of one HTTP/1 request that did not come with its head, read while the application waits for it.

It is read only once it is wanted, so that the application can refuse a request by its head, and counted as it comes.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import trio

from protocol.errors import ServerError
from protocol.http.body import MIN_BODY_RATE, BodyLimit, body_timeout
from protocol.http.http1.chunks import ChunkDecoder
from protocol.limits.request_memory import RequestShare
from protocol.messages import Buffer

# A line of chunked framing, and all trailers of a body.
MAX_FRAMING_LINE = 16 * 1024

# The most that is read at a time of a body whose size is known.
_PIECE = 1024 * 1024


class BodySource(Protocol):
    """Where a body comes from: the connection, behind the head."""

    async def receive(self) -> bytes:
        """At least one byte. Raises ClientGone."""

    async def receive_into(self, view: memoryview) -> int:
        """At least one byte, into memory that is there; returns how many. Raises ClientGone."""


class IncomingBody:
    """What `read_sized` and `read_chunked` raise, beside what they say: BodyTimeout, where the body pauses for
    `pause_seconds` in all or comes more slowly than `MIN_BODY_RATE`; ServerError, where it is over the limit, or no
    memory is left for it."""

    def __init__(self, source: BodySource, limit: BodyLimit, share: RequestShare, pause_seconds: float) -> None:
        self._source = source
        self._limit = limit
        self._share = share
        self._pause_seconds = pause_seconds
        self._started = trio.current_time()
        self._received = 0
        self._timing = trio.CancelScope()

    async def read_sized(self, first: bytes, size: int) -> Buffer:
        """The body of `size` bytes that begins with `first`."""
        # Not cleared, and it takes no memory until it is filled.
        view = np.empty(size, np.uint8).data
        filled = len(first)
        view[:filled] = first
        with self._timing:
            self._count(filled)
            while filled < size:
                piece = await self._source.receive_into(view[filled : filled + _PIECE])
                filled += piece
                self._count(piece)
            return view
        raise self._timeout()

    async def read_chunked(self, first: bytes) -> tuple[Buffer, bytes]:
        """The body whose framing begins with `first`, and what came behind it.

        Raises:
            InvalidArgument: the framing is none.
            LineTooLong: a line of it is too long.
        """
        decoder = ChunkDecoder(MAX_FRAMING_LINE)
        data = first
        with self._timing:
            while True:
                self._count(decoder.feed(data) if data else 0)
                if decoder.is_complete:
                    body = decoder.parts[0] if len(decoder.parts) == 1 else b"".join(decoder.parts)
                    return body, decoder.rest
                data = await self._source.receive()
        raise self._timeout()

    def _count(self, size: int) -> None:
        """Bytes of content have come, and the next ones have their time."""
        self._share.take(size)
        self._received += size
        self._limit.check(self._received)
        slowest = self._started + self._received / MIN_BODY_RATE
        self._timing.deadline = self._pause_seconds + min(trio.current_time(), slowest)

    def _timeout(self) -> ServerError:
        return body_timeout(self._received, trio.current_time() - self._started)
