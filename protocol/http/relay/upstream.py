"""Connections to the core's edge over HTTP/1, by the clients in whose name they were opened."""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from types import TracebackType
from typing import TypeAlias

import numpy as np
import trio

from protocol.http.errors import TooManyRelayed, TooManyUploads
from protocol.http.relay.response import NoResponse, ResponseHead, ResponseReader
from protocol.messages import Buffer
from protocol.reactor.transport import PlainWire
from protocol.sync.turns import Received

# Opens a connection in the name of the client of that address.
Open: TypeAlias = Callable[[str], Awaitable[trio.SocketStream]]

_RECEIVE_SIZE = 64 * 1024
# Content of a known length that is more than this is read to where it stays.
_IN_PLACE_ABOVE = 64 * 1024
# How long one without a request is kept for the next request of its client, and how many of them.
IDLE_SECONDS = 5.0
MOST_IDLE = 512
# Requests for health pass where others are too many: whoever asks would take a server that is busy for one that is ill.
_FOR_HEALTH = 16


class Purpose(Enum):
    """What a request has a connection for."""

    ANSWER = auto()  # all of it is there, or as much as the core needs to refuse it
    UPLOAD = auto()  # its body is still to come, when its client likes
    HEALTH = auto()


class Upstream:
    """One connection, with one request at a time: `send`, then `response`, then `whole` or `pieces`."""

    def __init__(self, client: str, stream: trio.SocketStream) -> None:
        self.client = client
        self.idle_since = 0.0
        self._wire = PlainWire(stream)
        self._reader = ResponseReader()

    def begin(self, method: str) -> None:
        self._reader = ResponseReader(is_to_head=method == "HEAD")

    async def send(self, parts: Sequence[Buffer]) -> bool:
        """Whether the core has taken it: one that has answered early reads no more."""
        return await self._wire.send_parts(parts, math.inf, lambda: None)

    async def response(self) -> ResponseHead | None:
        """The head of the response; None where the core asks for the request's body.

        Raises:
            NoResponse: it has gone.
        """
        reader = self._reader
        while reader.head is None:
            if reader.receive(await self._wire.receive(_RECEIVE_SIZE)):
                return None
        return reader.head

    async def whole(self) -> Buffer:
        """The content of a response that says how long it is. Raises NoResponse."""
        reader = self._reader
        if (reader.left or 0) > _IN_PLACE_ABOVE:
            return await self._read_in_place()
        while not reader.has_ended:
            reader.receive(await self._wire.receive(_RECEIVE_SIZE))
        parts = reader.take()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _read_in_place(self) -> Buffer:
        reader = self._reader
        parts = reader.take()
        filled = sum(map(len, parts))
        view = np.empty(filled + (reader.left or 0), np.uint8).data  # takes no memory until it is filled
        view[:filled] = b"".join(parts)
        received = Received()
        while not reader.has_ended:
            await received.wait()
            size = await self._wire.receive_into(view[filled : filled + received.room])
            if not size:
                raise NoResponse("the connection has ended")
            reader.note_received(size)
            received.note(size)
            filled += size
        return view

    async def next_piece(self) -> bytes:
        """More of the content, none at its end. Raises NoResponse."""
        reader = self._reader
        while True:
            parts = reader.take()
            if parts:
                return b"".join(parts)
            if reader.has_ended:
                return b""
            reader.receive(await self._wire.receive(_RECEIVE_SIZE))

    @property
    def is_reusable(self) -> bool:
        """Whether another request may follow."""
        reader = self._reader
        return reader.has_ended and reader.head is not None and not reader.head.closes

    def close(self) -> None:
        self._wire.abort()


class Lease:
    """The connection of one request: `take` it within a `with` block, at whose end it is given back, if not before.

    Attributes:
        was_taken: there was one, so that the core may have heard of the request.
    """

    def __init__(self, upstreams: Upstreams, client: str) -> None:
        self.was_taken = False
        self._upstreams = upstreams
        self._client = client
        self._upstream: Upstream | None = None
        self._is_upload = False

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    async def take(self, method: str, purpose: Purpose = Purpose.ANSWER) -> Upstream:
        """As `Upstreams.take`, for a request with that method."""
        self._upstream = upstream = await self._upstreams.take(self._client, purpose)
        self.was_taken = True
        self._is_upload = purpose is Purpose.UPLOAD
        upstream.begin(method)
        return upstream

    def note_sent(self) -> None:
        """All of the body has been sent: the request only has to be answered."""
        if self._is_upload:
            self._is_upload = False
            self._upstreams.end_upload()

    def end(self) -> None:
        self.note_sent()
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            self._upstreams.give_back(upstream)


class Upstreams:
    """All of one edge. `run` closes those that nobody has used for a while."""

    def __init__(
        self,
        open_one: Open,
        on_request: Callable[[], None] = lambda: None,
        *,
        most: int = sys.maxsize,
        most_idle: int = MOST_IDLE,
    ) -> None:
        """`on_request` is called for each request; `most` is how many may have one at a time, half of them
        for what their clients still have to send; `most_idle` are kept without a request."""
        self._open = open_one
        self._on_request = on_request
        self._most = most
        self._most_uploads = max(1, most // 2)
        self._most_idle = most_idle
        self._taken = 0
        self._uploads = 0
        self._idle: OrderedDict[str, list[Upstream]] = OrderedDict()  # the client that was served last is the last
        self._count = 0

    @property
    def idle_count(self) -> int:
        return self._count

    async def take(self, client: str, purpose: Purpose = Purpose.ANSWER) -> Upstream:
        """For one request of that client; to be given back, and if it is an upload, `end_upload` called before.

        Raises:
            NoResponse: there is none.
            TooManyRelayed, TooManyUploads: there may be no more: each takes a descriptor of the core's process.
        """
        is_upload = purpose is Purpose.UPLOAD
        if self._taken >= self._most + (_FOR_HEALTH if purpose is Purpose.HEALTH else 0):
            raise TooManyRelayed(self._most)
        if is_upload and self._uploads >= self._most_uploads:
            raise TooManyUploads(self._most_uploads)
        self._on_request()
        self._taken += 1
        self._uploads += is_upload
        try:
            return await self._take(client)
        except BaseException:
            self._taken -= 1
            self._uploads -= is_upload
            raise

    def end_upload(self) -> None:
        """The body of one has been sent, or is given up."""
        self._uploads -= 1

    async def _take(self, client: str) -> Upstream:
        idle = self._idle.get(client)
        if idle:
            self._count -= 1
            upstream = idle.pop()
            if not idle:
                del self._idle[client]
            return upstream
        try:
            return Upstream(client, await self._open(client))
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise NoResponse(f"no connection to the core: {error}") from None

    def give_back(self, upstream: Upstream) -> None:
        self._taken -= 1
        if not upstream.is_reusable:
            upstream.close()
            return
        upstream.idle_since = trio.current_time()
        self._idle.setdefault(upstream.client, []).append(upstream)
        self._idle.move_to_end(upstream.client)
        self._count += 1
        while self._count > self._most_idle:
            self._close_one(next(iter(self._idle)))

    async def run(self) -> None:
        """Until cancelled; then all are closed."""
        try:
            while True:
                await trio.sleep(IDLE_SECONDS / 2)
                self._close_idle(trio.current_time() - IDLE_SECONDS)
        finally:
            self._close_idle(math.inf)

    def _close_idle(self, since: float) -> None:
        for client in [*self._idle]:
            while client in self._idle and self._idle[client][0].idle_since <= since:
                self._close_one(client)

    def _close_one(self, client: str) -> None:
        """That which has been idle for the longest time."""
        idle = self._idle[client]
        idle.pop(0).close()
        self._count -= 1
        if not idle:
            del self._idle[client]
