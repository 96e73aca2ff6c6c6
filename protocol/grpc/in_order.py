"""Order among the answers of a stream, at no more cost than it takes: those that are ready leave in one go."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


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
