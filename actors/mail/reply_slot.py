"""Where the only answer to a request is left for its caller.

A memory channel does the same for streams of answers; for one answer it costs several times as much, on the main road.
"""

from __future__ import annotations

from typing import TypeAlias

import trio

from protocol.errors import ServerError
from protocol.messages import InferenceResponse
from protocol.sync.wakeup import Wakeup

Reply: TypeAlias = InferenceResponse | ServerError


class ReplySlot(Wakeup):
    """Room for one answer, and one task that waits for it."""

    __slots__ = ("_reply",)

    def __init__(self) -> None:
        self._waiting = None
        self._reply: Reply | None = None

    def send_nowait(self, reply: Reply) -> None:
        """Raises trio.WouldBlock if there is an answer already."""
        if self._reply is not None:
            raise trio.WouldBlock
        self._reply = reply
        self.wake()

    async def receive(self) -> Reply:
        """The answer, once. Cancelled, an answer that comes is kept."""
        if self._reply is None:
            await self.wait()
            assert self._reply is not None  # only an answer ends the wait
        else:
            await trio.lowlevel.checkpoint()
        return self._reply
