"""Order among the requests of a stream, at no more cost than it takes: they start in it, and their answers leave in it.

No request waits for a task switch of another one's, as long as Trio runs the tasks that are ready in their order. It
may as well run them in the other direction: then all wait for the first one, and try again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class StartOrder:
    """Tasks that begin in the order of their numbers, from 0 on."""

    def __init__(self) -> None:
        self._next = 0
        self._waiting = trio.lowlevel.ParkingLot()

    async def wait(self, number: int) -> None:
        """Returns when all before have returned from here, and have then come to their next checkpoint."""
        while number != self._next:
            await self._waiting.park()
        self._next += 1
        if self._waiting:
            self._waiting.unpark_all()


class AnswerOrder(Generic[T]):
    """Answers leave in the order in which they are expected. Whoever has the one whose turn it is hands all that are
    ready to `send`, one after the other; the others leave theirs behind and go."""

    def __init__(self, send: Callable[[T], Awaitable[None]]) -> None:
        self._send = send
        self._expected: deque[T] = deque()
        self._ready: set[T] = set()
        self._is_sending = False

    def __iter__(self) -> Iterator[T]:
        """Those that have not left."""
        return iter(self._expected)

    def expect(self, answer: T) -> None:
        self._expected.append(answer)

    async def complete(self, answer: T) -> None:
        """It can leave. No checkpoint where it is not its turn."""
        self._ready.add(answer)
        if self._is_sending:
            return
        self._is_sending = True
        try:
            while self._expected and self._expected[0] in self._ready:
                first = self._expected[0]
                await self._send(first)
                self._expected.popleft()
                self._ready.discard(first)
        finally:
            self._is_sending = False
