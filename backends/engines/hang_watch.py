"""Hang watch: notices that an engine's worker has owed something for too long, so that it is ended and started anew.

Owned by the worker, whose task waits here while it is attended to.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

# How late the server itself may be. Where it was later, it or the whole machine has stood still, and so has the engine,
# or what it has sent is not read yet.
_LATE_SECONDS = 1.0


class HangWatch:
    """`owed_for` tells for how many seconds the worker has owed a step or an answer: 0 while it owes none."""

    def __init__(self, limit: float, owed_for: Callable[[], float]) -> None:
        self._limit = limit
        self._owed_for = owed_for

    async def wait_hung(self) -> None:
        """Until it has owed something for the limit. It begins anew where the server was late."""
        begun = trio.current_time()
        while True:
            now = trio.current_time()
            left = self._limit - min(self._owed_for(), now - begun)
            if left <= 0:
                return
            await trio.sleep(left)
            if trio.current_time() - now > left + _LATE_SECONDS:
                begun = trio.current_time()
