"""What responses hold that models have given and their client has not taken: of one call, and over all calls.

A decoupled model may be faster than its client. What it gives waits here, no more than a few megabytes for each call of
a client; the model's sender waits then, and nobody else. What waits counts as the requests in flight do, so that a
server whose memory slow readers hold takes no more of them.
"""

from __future__ import annotations

from protocol.limits.request_memory import RequestMemory
from protocol.sync.wakeup import WaitingTasks

# Of one call; a single response may be larger.
MAX_WAITING_BYTES = 1 << 22


class ResponseMemory:
    """Of one call, whatever requests it makes. `server` is the account over all calls; there is none where a model is
    used without edges."""

    __slots__ = ("_freed", "held", "server")

    def __init__(self, server: RequestMemory | None = None) -> None:
        self.server = server
        self.held = 0
        self._freed = WaitingTasks()

    def take(self, size: int) -> bool:
        """Count a response, if there is room for it: there is for one at any time, so that every call goes on."""
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
        """Count bytes over all calls only, or no more where they are negative."""
        if self.server is not None:
            self.server.held += size

    def apart(self) -> ResponseMemory:
        """For responses that must not wait for those of this call: with a bound of their own."""
        return ResponseMemory(self.server)

    async def wait_freed(self) -> None:
        """Returns when something has changed: `take` may be tried again."""
        await self._freed.wait()
