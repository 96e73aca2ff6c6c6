"""Reads the socket in an asyncio loop, for coroutines that wait for answers.

A thread that read for them would have to wake the loop's for each answer. So the loop watches the socket itself, and
reads whenever something has come and no thread reads already. When nothing has waited in it for a while it stops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

if TYPE_CHECKING:
    import asyncio
    from typing import Protocol

    class SharedSocket(Protocol):
        """What a loop's reader needs of the switchboard, which hands the socket from one reader to the next."""

        def fileno(self) -> int: ...
        def join_loop(self, loop: LoopReader, *, can_read: bool) -> bool: ...
        def leave_loop(self, loop: LoopReader) -> None: ...
        def stop_loop(self, loop: LoopReader) -> None: ...
        def drop_loop(self, loop: LoopReader) -> None: ...
        def read_in_loop(self) -> bool: ...


# How long a loop in which nothing waits goes on to watch the socket: calls that follow each other leave gaps.
_IDLE_SECONDS = 0.1


class LoopReader:
    """One for each loop. What is public is changed under the switchboard's lock; methods are the loop's thread's, but
    for `tell`."""

    __slots__ = ("_cannot_watch", "_switchboard", "_was_used", "is_reading", "loop", "waiting")

    def __init__(self, switchboard: SharedSocket, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiting = 0  # coroutines
        self.is_reading = False  # watches the socket
        self._switchboard = switchboard
        self._was_used = False  # since the last look
        self._cannot_watch = False

    def begin(self) -> None:
        """Something waits in this loop from now on, until `tell`."""
        self._was_used = True
        if self._switchboard.join_loop(self, can_read=not self._cannot_watch):
            self.watch()

    def tell(self, callback: Callable[[], None]) -> None:
        """It has come: have the callback called in the loop. From any thread."""
        import asyncio

        try:
            is_here = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            is_here = False
        if is_here:
            self._end(callback)
            return
        try:
            self.loop.call_soon_threadsafe(self._end, callback)
        except RuntimeError:  # the loop is closed; nobody waits in it any more
            self._switchboard.drop_loop(self)

    def watch(self) -> None:
        """Begin to read, as the switchboard has noted already."""
        try:
            self.loop.add_reader(self._switchboard.fileno(), self.read)
        except NotImplementedError:  # not every loop can
            self._cannot_watch = True
            self._switchboard.stop_loop(self)
            return
        self.loop.call_later(_IDLE_SECONDS, self._look)
        self.read()

    def read(self) -> None:
        """Take what has come."""
        if self.is_reading and not self._switchboard.read_in_loop():
            self._stop()

    def _end(self, callback: Callable[[], None]) -> None:
        self._switchboard.leave_loop(self)
        callback()

    def _look(self) -> None:
        if not self.is_reading:
            return
        if self._was_used or self.waiting:
            self._was_used = False
            self.loop.call_later(_IDLE_SECONDS, self._look)
        else:
            self._stop()

    def _stop(self) -> None:
        self.loop.remove_reader(self._switchboard.fileno())
        self._switchboard.stop_loop(self)
