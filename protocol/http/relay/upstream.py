"""Connections to the core's edge over HTTP/1, by the clients in whose name they were opened."""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TypeAlias

import numpy as np
import trio

from protocol.http.errors import TooManyRelayed
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
    """The connection of one request: `take` it within a `with` block, at whose end it is given back, if not before."""

    def __init__(self, upstreams: Upstreams, client: str) -> None:
        self._upstreams = upstreams
        self._client = client
        self._upstream: Upstream | None = None

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    async def take(self, method: str) -> Upstream:
        """As `Upstreams.take`, for a request with that method."""
        self._upstream = upstream = await self._upstreams.take(self._client)
        upstream.begin(method)
        return upstream

    def end(self) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            self._upstreams.give_back(upstream)


class Upstreams:
    """All of one edge. `run` closes those that nobody has used for a while."""

    def __init__(
        self, open_one: Open, on_request: Callable[[], None] = lambda: None, *, most: int = sys.maxsize
    ) -> None:
        """`on_request` is called for each request; `most` is how many may have one at a time."""
        self._open = open_one
        self._on_request = on_request
        self._most = most
        self._taken = 0
        self._idle: OrderedDict[str, list[Upstream]] = OrderedDict()  # the client that was served last is the last
        self._count = 0

    @property
    def idle_count(self) -> int:
        return self._count

    async def take(self, client: str) -> Upstream:
        """For one request of that client; to be given back.

        Raises:
            NoResponse: there is none.
            TooManyRelayed: there may be no more: each takes a descriptor of the core's process.
        """
        if self._taken >= self._most:
            raise TooManyRelayed(self._most)
        self._on_request()
        self._taken += 1
        try:
            return await self._take(client)
        except BaseException:
            self._taken -= 1
            raise

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
        while self._count > MOST_IDLE:
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
