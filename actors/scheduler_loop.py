"""The loop that every scheduler of a model runs: wake, take all messages that are there, give out what can run.

Flow: core → model → [scheduler] → model instance → [scheduler] → reply channel → core. What is done with a message, and
what can run, is the scheduler's own: `actors.scheduler`, or `actors.sequence.batcher` for sequences.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sized
from dataclasses import dataclass, field

import trio

from actors.messages import InstanceAddress, SchedulerAddress, SchedulerMessage
from actors.statistics import VersionStatistics
from protocol.errors import Unavailable


@dataclass(eq=False, slots=True)
class SchedulerLoop(abc.ABC):
    """Ends when drained: asked to, nothing queued, nothing running. Cancelled, it fails all that it holds. On its way
    out it closes its instances' addresses, so that they unload.
    """

    name: str
    policy: Sized  # of the requests that wait
    statistics: VersionStatistics
    _live: set[InstanceAddress] = field(default_factory=set, init=False)
    # Names of instances that finish what they have, and no more.
    _removed: set[str] = field(default_factory=set, init=False)
    _is_draining: bool = field(default=False, init=False)

    @property
    def pending_count(self) -> int:
        """Requests that wait, for an instance or for a slot of one."""
        return len(self.policy)

    @property
    def live_count(self) -> int:
        """Instances that are loaded, idle or busy. One that runs several batches has an address for each."""
        return len({instance.name for instance in self._live} - self._removed)

    async def run(self, *, task_status: trio.TaskStatus[SchedulerAddress] = trio.TASK_STATUS_IGNORED) -> None:
        to_inbox, inbox = trio.open_memory_channel[SchedulerMessage](math.inf)
        with inbox:
            try:
                task_status.started(SchedulerAddress(to_inbox))
                while not (self._is_draining and not len(self.policy) and not self._has_running()):
                    await self._wait(inbox)
                    self._handle_waiting(inbox)
                    self._give_out(trio.current_time())
            finally:
                self._is_draining = True
                self._handle_waiting(inbox)
                # Nobody may be left waiting for an answer that cannot come.
                self._fail_all(Unavailable(f"model '{self.name}' was stopped before the request was finished"))
                for instance in self._live:
                    instance.inbox.close()

    async def _wait(self, inbox: trio.MemoryReceiveChannel[SchedulerMessage]) -> None:
        wake_at = self._wake_at()
        if wake_at == math.inf:  # mostly, and a scope costs
            self._handle(await inbox.receive())
            return
        with trio.move_on_at(wake_at):
            self._handle(await inbox.receive())

    @abc.abstractmethod
    def _handle(self, message: SchedulerMessage) -> None: ...

    @abc.abstractmethod
    def _wake_at(self) -> float:
        """When `_give_out` is to be called though no message has come; `math.inf` for never."""

    @abc.abstractmethod
    def _give_out(self, now: float) -> None:
        """Refuse what has waited too long, and give idle instances what can run."""

    @abc.abstractmethod
    def _has_running(self) -> bool:
        """Whether any request has been given out and not ended."""

    @abc.abstractmethod
    def _fail_all(self, error: Unavailable) -> None:
        """Answer everything that waits or runs with an error: the scheduler ends."""

    def _handle_waiting(self, inbox: trio.MemoryReceiveChannel[SchedulerMessage]) -> None:
        """Take all messages that are there already: one wake-up for a burst of requests, not one for each."""
        while True:
            try:
                message = inbox.receive_nowait()
            except trio.WouldBlock:
                return
            self._handle(message)

    def _no_instance(self) -> Unavailable:
        return Unavailable(f"model '{self.name}' is not ready: all of its instances have stopped and are restarting")
