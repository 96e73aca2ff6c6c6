"""Request memory: accounts for the bytes of all request bodies in flight, over all connections of both edges, with a
limit.

A body counts from its first byte until its request is answered, decompressed if it came compressed. It counts as it
arrives, not as announced: a client that announces much and sends nothing takes nothing from others.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from protocol.errors import Overloaded, PayloadTooLarge, ServerError
from protocol.limits.body_rooms import BodyRooms

# The name of its flag, under which refusals are counted.
LIMIT_NAME = "max_request_memory"
# What a request over HTTP/2 counts for beside its body: about what the objects around it take. A client pays some ten
# bytes for a stream, and has as many at once as a connection may have.
STREAM_MEMORY = 8192


class RequestMemory:
    """The account of one server, or of an edge process, by `holder` in the texts of errors; `limit` and `held` are in
    bytes. `rooms` is where large bodies are received."""

    __slots__ = ("_holder", "held", "limit", "rooms")

    def __init__(self, limit: int, holder: str = "the server") -> None:
        self._holder = holder
        self.limit = limit
        self.held = 0
        self.rooms = BodyRooms()

    @property
    def left(self) -> int:
        return self.limit - self.held

    def take(self, size: int) -> None:
        """Count bytes, whether they are within the limit or not."""
        self.held += size

    def give(self, size: int) -> None:
        self.held -= size

    def refusal(self, size: int) -> ServerError:
        """The error for a request that holds `size` bytes, which is too large itself or one too many."""
        if size > self.limit:
            return PayloadTooLarge(
                f"the request of {size} bytes is larger than the {self.limit} bytes that {self._holder} holds for all "
                "requests. Use --max-request-memory to increase the limit."
            )
        return Overloaded(
            f"the requests in flight hold the {self.limit} bytes that {self._holder} has for all of them. "
            "Use --max-request-memory to increase the limit."
        )


class RequestShare:
    """The bytes of one request; all are released by `end`, or at the end of a `with` block. `on_refusal` is called
    before it is refused."""

    __slots__ = ("_memory", "_on_refusal", "size")

    def __init__(self, memory: RequestMemory, on_refusal: Callable[[], None] = lambda: None) -> None:
        self._memory = memory
        self._on_refusal = on_refusal
        self.size = 0

    @property
    def rooms(self) -> BodyRooms:
        return self._memory.rooms

    def __enter__(self) -> RequestShare:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def take(self, size: int) -> None:
        """Count bytes that arrive, or will.

        Raises:
            PayloadTooLarge: this request alone is over the limit.
            Overloaded: all requests together are.
        """
        memory = self._memory
        if size > memory.limit - memory.held:
            self._on_refusal()
            raise memory.refusal(self.size + size)
        memory.held += size
        self.size += size

    def give(self, size: int) -> None:
        self._memory.held -= size
        self.size -= size

    def end(self) -> None:
        self._memory.held -= self.size
        self.size = 0
