"""The sockets of an edge whose clients are waited for, all in sight of one task.

    kernel -> [poller] -> a connection's call

To wait by Trio's own means is a task and some system calls for each socket and each request. Here the system tells in
one go which sockets have something, and their connections are called one after the other.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable

import trio


class Poller:
    """`run` is its one task. While a socket is in sight its owner keeps it open. `at_end` is called when all that have
    something have been called."""

    def __init__(self, at_end: Callable[[], None] = lambda: None) -> None:
        self._at_end = at_end
        self._selector = selectors.DefaultSelector()
        self._is_closed = False

    def add(self, watched: socket.socket, call: Callable[[], None]) -> None:
        """Call when there is something to read, the end of the stream included, each turn of the loop again until it is
        read. The call must not wait, and raises nothing."""
        self._selector.register(watched, selectors.EVENT_READ, call)

    def remove(self, watched: socket.socket) -> None:
        if not self._is_closed:
            self._selector.unregister(watched)

    async def run(self) -> None:
        selector = self._selector
        assert hasattr(selector, "fileno"), "this system's selector cannot be waited for"
        descriptor: int = selector.fileno()
        try:
            while True:
                await trio.lowlevel.wait_readable(descriptor)
                for key, _ in selector.select(0):
                    key.data()
                self._at_end()
        finally:
            self._is_closed = True
            trio.lowlevel.notify_closing(descriptor)
            selector.close()
