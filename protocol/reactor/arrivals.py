"""Where the connections of an edge come from: sockets that it listens on, or another process that hands them over."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import trio

from protocol.reactor.last_connections import refuse_more
from protocol.reactor.listening import open_listeners
from protocol.sync.wakeup import Wakeup

# Each has a request that is read in the same turn, mostly, and hundreds may be handed over in one moment: of the others
# not even a task begins.
_BEGUN_IN_A_TURN = 4


class Serve(Protocol):
    """Serves one connection, and closes it. `peer` is the client's address where the socket does not know it;
    `is_too_many` has it refused, as one more than there may be."""

    async def __call__(
        self, stream: trio.SocketStream, /, *, peer: str | None = None, is_too_many: bool = False
    ) -> None: ...


class Arrivals(Protocol):
    """The source of one edge's connections.

    Attributes:
        address: where clients reach it, as host and port.
    """

    @property
    def address(self) -> tuple[str, int]: ...

    async def run(
        self,
        serve: Serve,
        connections: trio.Nursery,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Have each connection served in a task of that nursery, until cancelled. Started once they are."""

    async def end(self) -> None:
        """Beside `run`: returns when all have come that will ever come."""


class Listening:
    """Sockets of the edge's own. Implements `Arrivals`; cancelling `run` closes them."""

    def __init__(self, listeners: Sequence[trio.SocketListener]) -> None:
        self._listeners = listeners
        host, port = listeners[0].socket.getsockname()[:2]
        self.address: tuple[str, int] = (host, port)

    @classmethod
    async def open(cls, host: str, port: int, *, backlog: int | None = None, reuse_port: bool = False) -> Listening:
        """As `open_listeners`, whose errors it raises."""
        return cls(await open_listeners(host, port, backlog=backlog, reuse_port=reuse_port))

    async def run(
        self,
        serve: Serve,
        connections: trio.Nursery,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        accept = partial(trio.serve_listeners, serve, list(self._listeners), handler_nursery=connections)
        await accept(task_status=task_status)  # type: ignore[arg-type]  # what it tells is known

    async def end(self) -> None:
        await refuse_more(self._listeners)


class HandedOver:
    """Connections that were accepted elsewhere. Implements `Arrivals`.

    Those that come before `run` wait for it, and of many that come at once some begin in each turn of the loop.
    `on_end` is called whenever one has been served; one too many is not.
    """

    def __init__(self, address: tuple[str, int], on_end: Callable[[], None] = lambda: None) -> None:
        self.address = address
        self._on_end = on_end
        self._waiting: deque[tuple[socket.socket, str | None, bool]] = deque()
        self._has_come = Wakeup()
        self._has_ended = False

    def put(self, accepted: socket.socket, peer: str | None = None, *, is_too_many: bool = False) -> None:
        """Take over a connected socket. After the end of `run` it is closed."""
        if self._has_ended:
            self._close(accepted, is_too_many=is_too_many)
        else:
            self._waiting.append((accepted, peer, is_too_many))
            self._has_come.wake()

    async def run(
        self,
        serve: Serve,
        connections: trio.Nursery,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        task_status.started()
        try:
            while True:
                for _ in range(min(len(self._waiting), _BEGUN_IN_A_TURN)):
                    accepted, peer, is_too_many = self._waiting.popleft()
                    stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
                    connections.start_soon(self._run_one, serve, stream, peer, is_too_many)
                if self._waiting:
                    await trio.lowlevel.checkpoint()
                else:
                    await self._has_come.wait()
        finally:
            self._has_ended = True
            while self._waiting:
                accepted, _, is_too_many = self._waiting.popleft()
                self._close(accepted, is_too_many=is_too_many)

    async def end(self) -> None:
        await trio.lowlevel.checkpoint()
        while self._waiting and not self._has_ended:
            await trio.lowlevel.checkpoint()

    async def _run_one(self, serve: Serve, stream: trio.SocketStream, peer: str | None, is_too_many: bool) -> None:
        try:
            await serve(stream, peer=peer, is_too_many=is_too_many)
        finally:
            if not is_too_many:
                self._on_end()

    def _close(self, accepted: socket.socket, *, is_too_many: bool) -> None:
        accepted.close()
        if not is_too_many:
            self._on_end()
