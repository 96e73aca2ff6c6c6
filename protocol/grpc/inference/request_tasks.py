"""Task pool of a stream: one task per request in progress, reused for later requests, started in order.

To start a task costs as much as to decode a small request. Whichever task runs first takes the request that is first,
so requests begin in their order, in whatever order Trio runs the tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

from protocol.sync.wakeup import WaitingTasks

T = TypeVar("T")

# How many tasks wait for requests. A stream rarely has more in progress, and a task takes some kilobytes.
MAX_IDLE = 64


class RequestTasks(Generic[T]):
    """In a nursery of the stream's, which ends them after the last request when `end` was called.

    `end` has to be called before the nursery's body is left: from then on nothing is started, since the nursery may
    have closed, and closes a turn of the loop before its owner goes on.
    """

    def __init__(self, nursery: trio.Nursery, run: Callable[[T], Awaitable[None]]) -> None:
        self._nursery = nursery
        self._run = run
        self.waiting: deque[T] = deque()  # for a task; never more than there are tasks on their way to them
        self._idle = WaitingTasks()
        self._is_over = False

    def start(self, request: T) -> None:
        """Run it in a task. It begins when those before have come to their first checkpoint. Ignored after `end`: the
        owner closes what is left."""
        if self._is_over:
            return
        self.waiting.append(request)
        if not self._idle.wake_one():
            self._nursery.start_soon(self._serve)

    def end(self) -> None:
        """No more requests follow: idle tasks end, the others when they have no more to do."""
        self._is_over = True
        self._idle.wake_all()

    async def _serve(self) -> None:
        while True:
            if self.waiting:
                await self._run(self.waiting.popleft())
            elif self._is_over or len(self._idle.waiting) >= MAX_IDLE:
                return
            else:
                await self._idle.wait()
