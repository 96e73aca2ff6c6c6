"""One task wakes another: a parking lot for one, at a fraction of its cost on the main road."""

from __future__ import annotations

import trio


class Wakeup:
    """`wait` ends with the next `wake`; one that comes while nobody waits is forgotten, so that who waits looks at what
    it waits for before and after."""

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
