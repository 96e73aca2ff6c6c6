"""What the request messages of one connection hold in memory, and the bound on it.

A message counts from its first byte until its call is done with it. So what a peer makes the server hold does not grow
with the number of its calls, nor with how well its messages are compressed.
"""

from __future__ import annotations

import trio

from protocol.errors import PayloadTooLarge


class ReceiveMemory:
    """`limit` is in bytes.

    Attributes:
        inflating: held by the call whose large message is being decompressed; one at a time, so that each knows what
            is left.
        threads: bounds how many messages are decompressed, or compressed, at one time by all connections.
    """

    __slots__ = ("_held", "_limit", "inflating", "threads")

    def __init__(self, limit: int, threads: trio.CapacityLimiter) -> None:
        self._limit = limit
        self._held = 0
        self.inflating = trio.Lock()
        self.threads = threads

    @property
    def left(self) -> int:
        return max(0, self._limit - self._held)

    def take(self, size: int) -> bool:
        """Count bytes that are there already; whether they are within the limit. They count in any case."""
        self._held += size
        return self._held <= self._limit

    def give(self, size: int) -> None:
        self._held -= size

    def refusal(self) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"the requests in progress on this connection hold more than the server's limit of {self._limit} bytes"
        )
