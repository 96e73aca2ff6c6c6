"""How many steps of some tasks there are in each turn of the loop."""

from __future__ import annotations

from types import TracebackType

import trio


class Steps(trio.abc.Instrument):
    """Of the tasks whose names end so, while the block lasts.

    Attributes:
        of_turns: in each turn that had any.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._steps = 0
        self.of_turns: list[int] = []

    def __enter__(self) -> Steps:
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        trio.lowlevel.remove_instrument(self)
        self._note()

    def before_io_wait(self, timeout: float) -> None:
        self._note()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._steps += task.name.endswith(self._name)

    def _note(self) -> None:
        if self._steps:
            self.of_turns.append(self._steps)
        self._steps = 0
