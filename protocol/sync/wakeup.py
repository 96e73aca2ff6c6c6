"""Wakeup: a parking lot for one task, at a fraction of the cost of `trio.lowlevel.ParkingLot`."""

from __future__ import annotations

import trio


class Wakeup:
    """For one task. `wait` ends with the next `wake`; a `wake` without a waiting task is lost, so the task checks its
    condition before and after."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: trio.lowlevel.Task | None = None

    @property
    def is_awaited(self) -> bool:
        return self._waiting is not None

    def wake(self) -> None:
        """Reschedule the waiting task, if there is one."""
        if self._waiting is not None:
            trio.lowlevel.reschedule(self._waiting)
            self._waiting = None

    async def wait(self) -> None:
        """Returns at the next `wake`; always blocks. Cancelled, it leaves the place to another task."""
        assert self._waiting is None, "only one task may wait"
        self._waiting = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, raise_cancel: object) -> trio.lowlevel.Abort:
        self._waiting = None
        return trio.lowlevel.Abort.SUCCEEDED


class WaitingTasks:
    """Any number of tasks that wait for the same thing. The one that began to wait last is woken first, as its memory
    is in the cache. `waiting` are those that wait."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[trio.lowlevel.Task] = []

    def wake_one(self) -> bool:
        """Reschedule the task that began to wait last; returns whether there was one."""
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
