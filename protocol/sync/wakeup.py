"""One task wakes another: what a parking lot does, at a fraction of its cost on the main road."""

from __future__ import annotations

import trio


class Wakeup:
    """For one task. `wait` ends with the next `wake`; one that comes while nobody waits is forgotten, so that who waits
    looks at what it waits for before and after."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: trio.lowlevel.Task | None = None

    def wake(self) -> None:
        if self._waiting is not None:
            trio.lowlevel.reschedule(self._waiting)
            self._waiting = None

    async def wait(self) -> None:
        assert self._waiting is None, "only one task may wait"
        self._waiting = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, raise_cancel: object) -> trio.lowlevel.Abort:
        self._waiting = None
        return trio.lowlevel.Abort.SUCCEEDED


class WaitingTasks:
    """Any number, for the same thing. The one that began to wait last is woken first: what it used last is nearest to
    the processor. `waiting` are those that wait."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[trio.lowlevel.Task] = []

    def wake_one(self) -> bool:
        """Returns whether there was one."""
        if not self.waiting:
            return False
        trio.lowlevel.reschedule(self.waiting.pop())
        return True

    def wake_all(self) -> None:
        while self.waiting:
            trio.lowlevel.reschedule(self.waiting.pop())

    async def wait(self) -> None:
        task = trio.lowlevel.current_task()
        self.waiting.append(task)

        def abort(raise_cancel: object) -> trio.lowlevel.Abort:
            self.waiting.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
