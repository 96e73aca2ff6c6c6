"""Accounts for whole responses of plain requests that their client has not read yet: one account for each connection.

A client may open a hundred streams on one connection, ask for megabytes on each, and read nothing. What then waits for
its flow-control windows is counted into the same memory as the bodies of requests in flight, so that new requests are
refused before the server runs out of it. One connection may hold as much of that memory as it leaves free: half of it
if it is alone. A response beyond that is answered with an error in its place, which is small.

An account belongs to its connection; whoever takes from it gives back in a `finally`.
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.errors import Overloaded
from protocol.limits.request_memory import LIMIT_NAME, RequestMemory

# A response of no more is counted and never refused: the error in its place would free nothing that is worth it.
SMALL = 1 << 14


class AnswerMemory:
    """`held` is in bytes, of this connection; `server` is the account over all connections. `count_refusal` is told the
    limit's name before a response is refused."""

    __slots__ = ("_count_refusal", "held", "server")

    def __init__(self, server: RequestMemory, count_refusal: Callable[[str], None] = lambda limit: None) -> None:
        self.server = server
        self.held = 0
        self._count_refusal = count_refusal

    def take(self, size: int) -> None:
        """Count a response that has to wait. A connection that holds none may have one of any size, so that every
        client that reads is served.

        Raises:
            Overloaded: the client reads too slowly for one more; nothing is counted.
        """
        if self.held and size > SMALL and self.held + size > self.server.left:
            self._count_refusal(LIMIT_NAME)
            raise Overloaded(
                f"the response of {size} bytes would wait behind {self.held} bytes that the client has not read, and "
                f"the server has {max(0, self.server.left)} bytes left for all requests. "
                "Use --max-request-memory to increase the limit."
            )
        self.held += size
        self.server.held += size

    def give(self, size: int) -> None:
        self.held -= size
        self.server.held -= size
