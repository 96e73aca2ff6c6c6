"""Response memory: bounds the responses of decoupled models that clients have not read yet, per call and in total.

A decoupled model may be faster than its client. Its responses wait here, up to a few megabytes per call; beyond that
the model's sender waits (backpressure), and nothing else does. What waits also counts against the limit of requests in
flight, so that slow readers cannot exhaust the memory.
"""

from __future__ import annotations

from protocol.limits.request_memory import RequestMemory
from protocol.sync.wakeup import WaitingTasks

# Of one call; a single response may be larger.
MAX_WAITING_BYTES = 1 << 22


class ResponseMemory:
    """The account of one call, whatever requests it makes. `server` is the account over all calls; None where a model
    is used without edges."""

    __slots__ = ("_freed", "held", "server")

    def __init__(self, server: RequestMemory | None = None) -> None:
        self.server = server
        self.held = 0
        self._freed = WaitingTasks()

    def take(self, size: int) -> bool:
        """Count a response, if there is room: there always is for one, so that every call makes progress."""
        server = self.server
        if self.held and (self.held + size > MAX_WAITING_BYTES or (server is not None and server.left < size)):
            return False
        self.held += size
        if server is not None:
            server.held += size
        return True

    def give(self, size: int) -> None:
        self.held -= size
        if self.server is not None:
            self.server.held -= size
        if self._freed.waiting:
            self._freed.wake_all()

    def keep(self, size: int) -> None:
        """Count bytes only in the total, or release them where they are negative."""
        if self.server is not None:
            self.server.held += size

    def apart(self) -> ResponseMemory:
        """An account with a bound of its own, for responses that must not wait for those of this call."""
        return ResponseMemory(self.server)

    async def wait_freed(self) -> None:
        """Wait until something was released: `take` may be tried again."""
        await self._freed.wait()
