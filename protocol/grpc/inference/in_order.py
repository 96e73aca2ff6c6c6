"""Reorder buffer for the responses of a stream: sends them in the order of their requests, all that are ready in one
write."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class AnswerOrder(Generic[T]):
    """Responses are sent in the order in which they are expected. The caller that completes the next one gives all that
    are ready to `send`, one after the other; other callers leave theirs and return. `send_at_once` tells whether it
    could."""

    def __init__(
        self, send: Callable[[T], Awaitable[None]], send_at_once: Callable[[T], bool] = lambda answer: False
    ) -> None:
        self._send = send
        self._send_at_once = send_at_once
        self._expected: deque[T] = deque()
        self._ready: set[T] = set()
        self._is_sending = False

    def __iter__(self) -> Iterator[T]:
        """Those that were not sent yet."""
        return iter(self._expected)

    def expect(self, answer: T) -> None:
        self._expected.append(answer)

    @property
    def is_empty(self) -> bool:
        """Whether all were sent."""
        return not self._expected

    async def complete(self, answer: T) -> None:
        """The response is ready. No checkpoint where it is not its turn."""
        self._ready.add(answer)
        await self.send_ready()

    async def send_ready(self) -> None:
        """Send those whose turn it is, unless another task is sending."""
        if self._is_sending:
            return
        self._is_sending = True
        try:
            while self._expected and self._expected[0] in self._ready:
                await self._send(self._expected[0])
                self._ready.discard(self._expected.popleft())
        finally:
            self._is_sending = False

    def complete_at_once(self, answer: T) -> bool:
        """The response is ready. False where `send_ready` has to be called."""
        self._ready.add(answer)
        if self._is_sending:
            return True
        while self._expected and self._expected[0] in self._ready:
            if not self._send_at_once(self._expected[0]):
                return False
            self._ready.discard(self._expected.popleft())
        return True
