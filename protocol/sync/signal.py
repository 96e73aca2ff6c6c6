"""Signal: a one-shot event with one waiting task, at a fraction of the cost of `trio.Event`."""

from __future__ import annotations

import trio

from protocol.sync.wakeup import Wakeup


class Signal(Wakeup):
    """Set once. Only one task may wait at a time."""

    __slots__ = ("is_set",)

    def __init__(self) -> None:
        self._waiting = None
        self.is_set = False

    def set(self) -> None:
        self.is_set = True
        self.wake()

    async def wait(self) -> None:
        if self.is_set:
            await trio.lowlevel.checkpoint()
        else:
            await Wakeup.wait(self)
