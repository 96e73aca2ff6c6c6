"""Inbox: an unbounded queue of messages for the one task of an actor, cheaper than a memory channel.

Owned by the actor that receives from it. Actors that handle messages synchronously, in the sender's call, need none
(`actors.scheduling.base`).
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import trio

from protocol.sync.wakeup import Wakeup

T = TypeVar("T")


class Inbox(Wakeup, Generic[T]):
    """Once closed, what is in it can still be received, and sending raises."""

    __slots__ = ("_is_closed", "_messages")

    def __init__(self) -> None:
        self._waiting = None
        self._messages: deque[T] = deque()
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def send_nowait(self, message: T) -> None:
        """Raises trio.BrokenResourceError once it is closed."""
        if self._is_closed:
            raise trio.BrokenResourceError
        self._messages.append(message)
        self.wake()

    async def receive(self) -> T | None:
        """The next message; None if there is none and none will come. For one task at a time, though others may take
        messages before it; cancelled, it takes nothing."""
        if self._messages or self._is_closed:
            await trio.lowlevel.checkpoint()
        while not self._messages and not self._is_closed:
            await self.wait()
        return self.receive_nowait()

    def receive_nowait(self) -> T | None:
        """The next message; None if there is none."""
        return self._messages.popleft() if self._messages else None

    def close(self) -> None:
        self._is_closed = True
        self.wake()
