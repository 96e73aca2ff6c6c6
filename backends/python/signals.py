"""A signal that one task waits for, once: `trio.Event`, for any number of them, costs several times as much."""

from __future__ import annotations

import trio


class Signal:
    """Set once. Only one task may wait at a time."""

    __slots__ = ("_waiting", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._waiting: trio.lowlevel.Task | None = None

    def set(self) -> None:
        self.is_set = True
        if self._waiting is not None:
            task, self._waiting = self._waiting, None
            trio.lowlevel.reschedule(task)

    async def wait(self) -> None:
        if self.is_set:
            await trio.lowlevel.checkpoint()
        else:
            self._waiting = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._waiting = None
        return trio.lowlevel.Abort.SUCCEEDED
