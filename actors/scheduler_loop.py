"""What all schedulers of a model have in common: messages are noted at once, what can run is given out by a task.

Flow: core → model → [scheduler] → model instance → [scheduler] → reply channel → core. What is done with a message, and
what can run, is the scheduler's own: `actors.scheduler`, or `actors.sequence.batcher` for sequences.

A message is noted by a call, within `SchedulerAddress.tell`. The task wakes once for all that was told since it slept,
so that requests of a burst share a batch; who knows where its burst ends says so (`SchedulerAddress.give_out`), and the
task sleeps on. The end of a batch does not wait for it either: in that one call its instance is given the next one,
then, while that computes, the scheduler answers, and counts the batch while answers are on their way. Nobody else
answers a request that it holds, and whoever asks for what was counted finds it there: nothing else runs meanwhile. A
caller that is answered may tell the scheduler something before `tell` returns, so answers come last in what changes its
state.
"""

from __future__ import annotations

import abc
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import trio

from actors.messages import (
    BatchDone,
    InstanceAddress,
    QueuedRequest,
    SchedulerAddress,
    SchedulerMessage,
    stopped_accepting,
)
from actors.ordered_replies import OrderedReplies
from actors.reply_slot import Reply
from actors.statistics import VersionStatistics
from protocol.answers import Awaited
from protocol.errors import Unavailable
from protocol.wakeup import Wakeup

logger = logging.getLogger("trioton.scheduler")


class Waiting(Protocol):
    """The requests that wait."""

    @property
    def waiting(self) -> int:
        """How many."""


@dataclass(eq=False, slots=True)
class SchedulerLoop(abc.ABC):
    """Ends when drained: asked to, nothing queued, nothing running. Cancelled, it fails all that it holds. On its way
    out it closes its instances' addresses, so that they unload.
    """

    name: str
    policy: Waiting
    statistics: VersionStatistics
    ordered: OrderedReplies | None = None
    # How long requests wait for an instance that is started again when the last one has died; 0 for not at all.
    restart_wait: float = field(default=0.0, kw_only=True)
    _live: set[InstanceAddress] = field(default_factory=set, init=False)
    # Names of instances that finish what they have, and no more.
    _removed: set[str] = field(default_factory=set, init=False)
    _is_draining: bool = field(default=False, init=False)
    _has_ended: bool = field(default=False, init=False)
    # Until then requests wait though no instance lives.
    _held_until: float = field(default=-math.inf, init=False)
    # Since the task has last looked what can be given out.
    _has_news: bool = field(default=False, init=False)
    # As `_give_out` has said last.
    _wake_at: float = field(default=math.inf, init=False)
    _news: Wakeup = field(default_factory=Wakeup, init=False)
    # The clock that Trio runs by, without the way to it, which costs two calls each time.
    _now: Callable[[], float] = field(default=trio.current_time, init=False)

    @property
    def pending_count(self) -> int:
        """Requests that wait, for an instance or for a slot of one."""
        return self.policy.waiting

    @property
    def live_count(self) -> int:
        """Instances that are loaded, idle or busy. One that runs several batches has an address for each."""
        return len({instance.name for instance in self._live} - self._removed)

    async def run(self, *, task_status: trio.TaskStatus[SchedulerAddress] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            self._now = trio.lowlevel.current_clock().current_time
            task_status.started(SchedulerAddress(self._tell, self._submit_later, self._give_out_now))
            while not (self._is_draining and not self.policy.waiting and not self._has_running()):
                await self._wait()
                self._wake_at = self._give_out(self._now())
        finally:
            self._is_draining = True
            # Nobody may be left waiting for an answer that cannot come.
            self._fail_all(Unavailable(f"model '{self.name}' was stopped before the request was finished"))
            self._has_ended = True
            for instance in self._live:
                instance.inbox.close()

    def _tell(self, message: SchedulerMessage) -> None:
        if self._has_ended:
            raise stopped_accepting()
        if isinstance(message, BatchDone):
            now = self._now()
            items, replies = self._finish(message, now)
            self._wake_at = self._give_out(now)
            if self._is_draining or self._wake_at != math.inf:
                self._tell_task()
            self._answer(items, replies)
            self._count(message, now)
        else:
            self._handle(message)
            self._tell_task()

    def _submit_later(self, item: QueuedRequest) -> None:
        if self._has_ended:
            raise stopped_accepting()
        self._submit(item)

    def _give_out_now(self) -> None:
        try:
            self._wake_at = self._give_out(self._now())
            if self._wake_at == math.inf and not self._is_draining:
                return
        except Exception:  # a defect: the task meets it again, and ends by it
            logger.debug("model '%s': cannot give out what was noted", self.name, exc_info=True)
        self._tell_task()

    def _tell_task(self) -> None:
        if not self._has_news:
            self._has_news = True
            self._news.wake()

    async def _wait(self) -> None:
        """Until something was told, or it is time."""
        if self._has_news:
            await trio.lowlevel.checkpoint()
        elif self._wake_at == math.inf:  # mostly, and a scope costs
            await self._news.wait()
        else:
            with trio.move_on_at(self._wake_at):
                await self._news.wait()
        self._has_news = False

    def _answer(self, items: Sequence[QueuedRequest], replies: Sequence[Reply]) -> None:
        if self.ordered is not None:
            self.ordered.answer(zip(items, replies, strict=True))
            return
        last = items[-1].reply if items else None
        edge = last.answers if isinstance(last, Awaited) else None  # mostly that of all of them
        if edge is not None:
            edge.begin_burst()
        for item, reply in zip(items, replies, strict=True):
            if not item.is_cancelled:
                item.reply.send_nowait(reply)
        if edge is not None:
            edge.end_burst()

    @abc.abstractmethod
    def _finish(self, done: BatchDone, now: float) -> tuple[Sequence[QueuedRequest], Sequence[Reply]]:
        """Note what its instance can do next. Gives the requests that are to be answered, and how."""

    @abc.abstractmethod
    def _count(self, done: BatchDone, now: float) -> None:
        """Count a batch, whose requests are answered, as far as `_finish` has not."""

    @abc.abstractmethod
    def _handle(self, message: SchedulerMessage) -> None:
        """Note any message but `BatchDone`."""

    @abc.abstractmethod
    def _submit(self, item: QueuedRequest) -> None:
        """Queue a request, or answer it."""

    @abc.abstractmethod
    def _give_out(self, now: float) -> float:
        """Refuse what has waited too long, and give idle instances what can run. Returns when to look again though no
        message has come; `math.inf` for never."""

    @abc.abstractmethod
    def _has_running(self) -> bool:
        """Whether any request has been given out and not ended."""

    @abc.abstractmethod
    def _fail_all(self, error: Unavailable) -> None:
        """Answer everything that waits or runs with an error: the scheduler ends."""

    def _end_life(self, instance: InstanceAddress) -> None:
        """An instance takes no more. After the last one requests wait for a while, where the model waits for restarts
        at all: `RestartDelayed` ends that."""
        if instance in self._live:
            self._live.discard(instance)
            if not self._live:
                self._held_until = self._now() + self.restart_wait if self.restart_wait else -math.inf

    def _is_held(self) -> bool:
        """Whether requests may wait for an instance although none lives."""
        return self._now() < self._held_until

    def _no_instance(self) -> Unavailable:
        return Unavailable(f"model '{self.name}' is not ready: all of its instances have stopped and are restarting")
