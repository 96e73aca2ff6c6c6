"""Has a task wait by the poller until a socket is readable.

Flow: kernel -> poller -> [readable] -> the task that reads

Trio itself wakes all tasks whose sockets are readable in one turn of its loop, however many they are: a thousand
clients that leave at once take it some 25 ms for the waking alone. The poller wakes some in each.
"""

from __future__ import annotations

import socket

import trio

from protocol.reactor.drivers import has_epoll, the_poller
from protocol.sync.wakeup import Wakeup


class Readable:
    """Of one socket, for one task at a time. `end` goes with the closing of the socket."""

    __slots__ = ("_is_new", "_socket", "_waiting")

    def __init__(self, watched: socket.socket) -> None:
        self._socket = watched
        self._is_new = True  # it was not waited for so far
        self._waiting: Wakeup | None = None

    async def wait(self) -> None:
        """Returns when there is something to read, the end of the stream included, or the socket was closed.

        Raises:
            OSError, trio.ClosedResourceError: it is closed.
        """
        if self._socket.fileno() < 0:
            raise trio.ClosedResourceError
        if not has_epoll():  # there a poller has a task for each socket
            await trio.lowlevel.wait_readable(self._socket)
            return
        poller, self._waiting = the_poller(), Wakeup()
        poller.add(self._socket, self._wake, self._fail, new=self._is_new)
        self._is_new = False
        try:
            await self._waiting.wait()
        finally:
            if self._waiting is not None:  # else it was removed
                self._waiting = None
                poller.remove(self._socket)

    def end(self) -> None:
        """The socket is about to be closed. Who waits goes on."""
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            the_poller().remove(self._socket)
            waiting.wake()

    def _fail(self, error: Exception) -> None:
        self._wake()
