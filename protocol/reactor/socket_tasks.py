"""A selector made of Trio's own waits, a task for each socket: for systems without epoll.

Flow: `trio.lowlevel.wait_readable` -> [socket tasks] -> the poller's task
"""

from __future__ import annotations

from functools import partial

import trio

from protocol.reactor.busy_polling import Events
from protocol.sync.wakeup import Wakeup


class SocketTasks:
    """Implements `poller.Selector`, but that `poll` never waits: `wait` does. Its tasks are system tasks, and end with
    the run, or when their socket is unregistered or closed."""

    def __init__(self) -> None:
        self._scopes: dict[int, trio.CancelScope] = {}
        self._ready: dict[int, int] = {}
        self._has_some = Wakeup()
        self._polled = trio.Event()

    def register(self, descriptor: int, events: int) -> None:
        self.unregister(descriptor)
        scope = self._scopes[descriptor] = trio.CancelScope()
        trio.lowlevel.spawn_system_task(partial(self._watch, descriptor, events, scope))

    def unregister(self, descriptor: int) -> None:
        self._ready.pop(descriptor, None)
        if (scope := self._scopes.pop(descriptor, None)) is not None:
            scope.cancel()

    def poll(self, timeout: float, most: int) -> Events:
        ready, self._ready = self._ready, {}
        if ready:
            polled, self._polled = self._polled, trio.Event()
            polled.set()
        return list(ready.items())

    async def wait(self) -> None:
        """Returns when `poll` has something to give."""
        while not self._ready:
            await self._has_some.wait()

    def close(self) -> None:
        for scope in self._scopes.values():
            scope.cancel()

    async def _watch(self, descriptor: int, events: int, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                # The number may be another socket's by now, which only one task may wait for.
                await trio.lowlevel.checkpoint_if_cancelled()
                try:
                    await trio.lowlevel.wait_readable(descriptor)
                except (OSError, trio.ClosedResourceError):  # its owner, who has closed it, unregisters it soon
                    return
                if scope.cancel_called:
                    return
                self._ready[descriptor] = events
                self._has_some.wake()
                await self._polled.wait()  # and called: what has not been read is ready again
