"""Loop lag: how late tasks of the loop get their turn, and, for debugging, what has held it.

`LoopLag` is a task that wakes 20 times a second and measures by how much too late: what a request would have waited
that had come at this moment. `LoopWatchdog`, off by default, is a thread beside it that looks at the loop's stack while
the loop is late.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice, takewhile
from types import FrameType

import trio

from actors.metrics.histogram import Histogram, HistogramSnapshot

logger = logging.getLogger(__name__)

# What holds the loop for longer is always seen, what is shorter by chance.
PERIOD_SECONDS = 0.05
BOUNDS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
# Frames that a line of the log has, from the innermost on.
_MOST_FRAMES = 8
# Trio's loop: what has called it says nothing of what holds it.
_RUNNERS = ("unrolled_run", "guest_tick")
_REPEATED_SECONDS = 1.0  # the same place is not logged more often


class LoopLag:
    """That of the loop that it runs in."""

    def __init__(self) -> None:
        self._lags = Histogram(BOUNDS_SECONDS)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            due = trio.current_time() + PERIOD_SECONDS
            await trio.sleep_until(due)
            self._lags.observe(max(0.0, trio.current_time() - due))

    def snapshot(self) -> HistogramSnapshot:
        return self._lags.frozen()


class _CurrentTask(trio.abc.Instrument):
    """The name of the task that runs now. Costs two calls for each step of each task, so only the watchdog has it."""

    def __init__(self) -> None:
        self.name = ""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.name = task.name

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.name = ""


@dataclass(eq=False)
class LoopWatchdog:
    """Logs what the loop did when it was `seconds` late: the task, and where its code was. `ident` is the loop's
    thread, known from the start of `run`."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    _task: _CurrentTask = field(default_factory=_CurrentTask, init=False)
    _beat: float = field(default=0.0, init=False)
    _over: threading.Event = field(default_factory=threading.Event, init=False)
    _logged: dict[str, float] = field(default_factory=dict, init=False)

    async def run(self) -> None:
        """Until cancelled; the thread then ends by itself, within `seconds`."""
        ident = threading.get_ident()
        self._beat = self.clock()
        trio.lowlevel.add_instrument(self._task)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_beating)
                await trio.to_thread.run_sync(self._watch, ident, abandon_on_cancel=True)
        finally:
            self._over.set()
            trio.lowlevel.remove_instrument(self._task)

    async def _keep_beating(self) -> None:
        while True:
            self._beat = self.clock()
            await trio.sleep(self.seconds / 2)

    def _watch(self, ident: int) -> None:
        """Runs in the thread."""
        while not self._over.wait(self.seconds / 4):
            beat = self._beat
            if self.clock() - beat < 1.5 * self.seconds:
                continue
            frame, task = sys._current_frames().get(ident), self._task.name
            where = "" if frame is None else _place(frame)
            while self._beat == beat and not self._over.wait(self.seconds / 4):
                pass
            if not self._over.is_set():
                self._tell(where, task, self.clock() - beat)

    def _tell(self, where: str, task: str, seconds: float) -> None:
        now = self.clock()
        if now - self._logged.get(where, -_REPEATED_SECONDS) < _REPEATED_SECONDS:
            return
        self._logged = {place: at for place, at in self._logged.items() if now - at < _REPEATED_SECONDS} | {where: now}
        what = f"task '{task}'" if task else "a callback of the poller, or no task"
        logger.warning("the loop was held for some %.0f ms by %s: %s", seconds * 1000, what, where)


def _place(frame: FrameType) -> str:
    """Where the code is, the innermost call first."""
    stack = takewhile(lambda found: found[0].f_code.co_name not in _RUNNERS, traceback.walk_stack(frame))
    frames = traceback.StackSummary.extract(islice(stack, _MOST_FRAMES), lookup_lines=False)
    return " < ".join(f"{each.name} ({each.filename}:{each.lineno})" for each in frames)
