"""Task pool of a connection: one task per call in progress, reused for later calls.

To start a task and to enter a cancel scope costs as much as to decode a small request. So a task that has served a call
waits for another one with its scope still open; a scope that was cancelled, or whose deadline has passed, is used up,
and its task ends with the call.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

import trio

from protocol.grpc.call.headers import Header
from protocol.grpc.call.stream import Stream
from protocol.sync.wakeup import WaitingTasks

# How many tasks wait for calls. A connection rarely has more calls in progress, and a task takes some kilobytes.
MAX_IDLE = 64


class CallTasks:
    """In a nursery of the connection's, which cancels those that wait.

    Args:
        handle: runs a call; gives its trailers.
        close: called when a call has ended in any way, also with the connection.
        end: called then with the trailers, or None where the call's scope was cancelled: by its client, or by the
            deadline. Not where the connection is.
    """

    __slots__ = ("_close", "_end", "_handle", "_idle", "_nursery", "_waiting")

    def __init__(
        self,
        nursery: trio.Nursery,
        handle: Callable[[Stream], Awaitable[Sequence[Header]]],
        close: Callable[[Stream], None],
        end: Callable[[Stream, Sequence[Header] | None], None],
    ) -> None:
        self._nursery = nursery
        self._handle = handle
        self._close = close
        self._end = end
        self._waiting: list[Stream] = []  # never more than there are tasks on their way to them
        self._idle = WaitingTasks()

    def start(self, stream: Stream) -> None:
        self._waiting.append(stream)
        if not self._idle.wake_one():
            self._nursery.start_soon(self._serve)

    async def _serve(self) -> None:
        with trio.CancelScope() as scope:
            while True:
                stream = self._waiting.pop(0)
                stream.scope = scope
                if stream.deadline != math.inf:
                    scope.deadline = stream.deadline
                try:
                    trailers = await self._handle(stream)
                finally:
                    self._close(stream)
                self._end(stream, trailers)
                is_used_up = stream.is_closed  # cancelled, when it was too late
                if stream.deadline != math.inf:
                    is_used_up = is_used_up or scope.cancel_called
                    scope.deadline = math.inf
                if is_used_up or len(self._idle.waiting) >= MAX_IDLE:
                    return
                await self._idle.wait()
        self._end(stream, None)
