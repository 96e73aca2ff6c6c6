"""Reply slot: a one-shot channel for the only reply to a request.

Owned by the caller, who waits for it. A memory channel does the same for streams of replies; for one reply it costs
several times as much, on the path of every request.
"""

from __future__ import annotations

from typing import TypeAlias

import trio

from protocol.errors import ServerError
from protocol.messages import InferenceResponse
from protocol.sync.wakeup import Wakeup

Reply: TypeAlias = InferenceResponse | ServerError


class ReplySlot(Wakeup):
    """Room for one reply, and one task that waits for it."""

    __slots__ = ("_reply",)

    def __init__(self) -> None:
        self._waiting = None
        self._reply: Reply | None = None

    def send_nowait(self, reply: Reply) -> None:
        """Raises trio.WouldBlock if there is a reply already."""
        if self._reply is not None:
            raise trio.WouldBlock
        self._reply = reply
        self.wake()

    async def receive(self) -> Reply:
        """The reply, once. Cancelled, a reply that comes later is kept."""
        if self._reply is None:
            await self.wait()
            assert self._reply is not None  # only an answer ends the wait
        else:
            await trio.lowlevel.checkpoint()
        return self._reply
