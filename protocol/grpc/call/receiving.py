"""Receive memory: bounds the bytes of request messages that one connection, and all connections, may hold.

A message counts from its first byte until its call is done with it, and so does the call itself. So the memory that a
peer can occupy does not grow with the number of its calls, nor with how well its messages are compressed.
"""

from __future__ import annotations

import trio

from protocol.errors import PayloadTooLarge, ServerError
from protocol.limits.body_rooms import BodyRooms
from protocol.limits.request_memory import LIMIT_NAME, RequestMemory

# What a call counts for beside its messages, and each message that is being handled beside its bytes: about what the
# objects around it take. A client pays some ten bytes for a call, and sixty for a request of a stream.
CALL_MEMORY = 8192
MESSAGE_MEMORY = 4096
# A connection may hold so much, one call with a short message, whatever the others hold: what asks for the server's
# health is not to be told that it has none because clients send more than it takes.
ALWAYS = CALL_MEMORY + 1024


class ReceiveMemory:
    """`limit` is in bytes; `server` counts, and bounds, what all connections hold.

    Attributes:
        inflating: held by the call whose large message is being decompressed; one at a time, so that each knows what
            is left.
        threads: bounds how many messages are decompressed, or compressed, at one time by all connections.
    """

    __slots__ = ("_held", "_inflating", "_limit", "_server", "threads")

    def __init__(self, limit: int, server: RequestMemory, threads: trio.CapacityLimiter) -> None:
        self._limit = limit
        self._server = server
        self._held = 0
        self._inflating: trio.Lock | None = None
        self.threads = threads

    @property
    def inflating(self) -> trio.Lock:
        """Made when it is first needed: most connections never do."""
        if self._inflating is None:
            self._inflating = trio.Lock()
        return self._inflating

    @property
    def left(self) -> int:
        return max(0, min(self._limit - self._held, self._server.left))

    @property
    def rooms(self) -> BodyRooms:
        return self._server.rooms

    def take(self, size: int) -> bool:
        """Count bytes that have arrived; returns whether they are within the limits. They count in any case."""
        server = self._server
        self._held += size
        server.held += size
        return self._held <= self._limit and (server.held <= server.limit or self._held <= ALWAYS)

    def give(self, size: int) -> None:
        self._held -= size
        self._server.held -= size

    def close(self) -> None:
        """The connection has ended, with all of its calls."""
        self.give(self._held)

    def refusal(self, size: int) -> tuple[str, ServerError]:
        """For a call that holds `size` bytes: the limit that it exceeds, or the nearer of the two, and the error."""
        if self._server.left < self._limit - self._held:
            return LIMIT_NAME, self._server.refusal(size)
        return "max_receive_memory", PayloadTooLarge(
            f"the requests in progress on this connection hold more than the server's limit of {self._limit} bytes"
        )
