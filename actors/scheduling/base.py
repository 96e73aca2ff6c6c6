"""Base class of the schedulers: an actor that handles messages by calls, with a task for what needs a wait.

Flow: core → model → [scheduler] → model instance → [scheduler] → reply channel → core. Started and owned by the model
actor. What a message means and what can run is up to the subclass: `actors.scheduling.scheduler`, or
`actors.scheduling.sequence.batcher` for sequences.

`SchedulerAddress.send_nowait` handles a message before it returns and wakes the task, which then gives batches to idle
instances, once for all messages since it slept: requests of a burst share a batch. Callers that batch call
`SchedulerAddress.flush` at the end of a burst instead, and the task need not wake. `BatchDone` is handled whole within
the call: the instance gets its next batch first, then, while that computes, the requests are answered, and last the
batch is counted. Handling is reentrant at two points: an instance may report a batch within the call that gives it one,
and a caller that is answered may send another message. So each is done when the state is consistent.

Only the scheduler answers a request that it holds. It ends when drained; cancelled, it fails all that it holds.

A defect is raised to no sender, and does not end the task. In the handling of a request it costs that request. In the
search for what can run, the policy is rebuilt from the requests that wait; if that does not help, they all fail, and
the next ones are served.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import trio

from actors.mail.messages import (
    BatchDone,
    Execute,
    InstanceAddress,
    InstanceGone,
    QueuedRequest,
    SchedulerAddress,
    SchedulerMessage,
    StoppedAccepting,
    Submit,
    stopped_accepting,
)
from actors.mail.reply_slot import Reply
from actors.metrics.statistics import FailureReason, VersionStatistics
from actors.scheduling.ordered_replies import OrderedReplies
from protocol.errors import Internal, ServerError, Unavailable
from protocol.failures import CallbackFailures
from protocol.reactor.replies import PendingReply
from protocol.sync.wakeup import Wakeup


class Waiting(Protocol):
    """What the base class knows of a policy: how much waits there."""

    @property
    def waiting(self) -> int:
        """How many."""


@dataclass(eq=False, slots=True)
class SchedulerLoop(abc.ABC):
    """The actor of one model version's queue.

    `run` returns when drained: it was asked to, and nothing is queued or running. Cancelled, it fails all that it
    holds. Either way it then closes the addresses of its instances, so that they unload.
    """

    name: str
    policy: Waiting
    statistics: VersionStatistics
    ordered: OrderedReplies | None = None
    # How long requests wait for an instance that is started again when the last one has died; 0 for not at all.
    restart_wait: float = field(default=0.0, kw_only=True)
    failures: CallbackFailures = field(default_factory=CallbackFailures, kw_only=True)
    _live: set[InstanceAddress] = field(default_factory=set, init=False)
    # Names of instances that get no more batches.
    _removed: set[str] = field(default_factory=set, init=False)
    _is_draining: bool = field(default=False, init=False)
    _has_ended: bool = field(default=False, init=False)
    # Until then requests wait though no instance lives.
    _held_until: float = field(default=-math.inf, init=False)
    # Whether the task has been woken since it last looked.
    _has_news: bool = field(default=False, init=False)
    # As `_flush` has said last.
    _wake_at: float = field(default=math.inf, init=False)
    _news: Wakeup = field(default_factory=Wakeup, init=False)
    # The clock of Trio's run itself: `trio.current_time` costs two calls more.
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
            task_status.started(SchedulerAddress(self._receive, self._submit_later, self._flush_now))
            while not (self._is_draining and not self.policy.waiting and not self._has_running()):
                await self._wait()
                try:
                    self._wake_at = self._flush(self._now())
                except Exception as error:
                    self._wake_at = self._recover(error)
        finally:
            self._is_draining = True
            # Nobody may be left waiting for an answer that cannot come.
            try:
                self._fail_all(Unavailable(f"model '{self.name}' was stopped before the request was finished"))
            except Exception as error:
                self._note(error, "what was left at the end was not answered whole")
            self._has_ended = True
            for instance in self._live:
                instance.inbox.close()

    def _receive(self, message: SchedulerMessage) -> None:
        if self._has_ended:
            raise stopped_accepting()
        if isinstance(message, BatchDone):
            now = self._now()
            try:
                items, replies = self._finish(message, now)
            except Exception as error:
                items, replies = self._finish_failed(message, error)
            try:
                self._wake_at = self._flush(now)
            except Exception as error:
                self._wake_at = self._recover(error)
            if self._is_draining or self._wake_at != math.inf:
                self._wake_task()
            self._answer(items, replies)
            if not items and message.replies is not None:  # it was given up before, and counted then
                return
            try:
                self._count(message, now)
            except Exception as error:
                self._note(error, "a batch was not counted")
        else:
            try:
                self._handle(message)
            except StoppedAccepting:  # by a request
                raise
            except Exception as error:
                self._handle_failed(message, error)
            self._wake_task()

    def _submit_later(self, item: QueuedRequest) -> None:
        if self._has_ended:
            raise stopped_accepting()
        try:
            self._submit(item)
        except StoppedAccepting:
            raise
        except Exception as error:
            self._refuse_defective(item, error)

    def _flush_now(self) -> None:
        try:
            self._wake_at = self._flush(self._now())
        except Exception as error:
            self._wake_at = self._recover(error)
        if self._wake_at != math.inf or self._is_draining:
            self._wake_task()

    def _wake_task(self) -> None:
        if not self._has_news:
            self._has_news = True
            self._news.wake()

    async def _wait(self) -> None:
        """Sleep until a message has come, or `_wake_at`."""
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
            self._answer_in_order(self.ordered, items, replies)
            return
        last = items[-1].reply if items else None
        edge = last.replies if isinstance(last, PendingReply) else None  # mostly that of all of them
        if edge is not None:
            edge.begin_burst()
        each_reply = iter(replies)  # a strict `zip` takes as long as many a reply
        try:
            for item in items:
                reply = next(each_reply)
                if not item.is_cancelled:
                    try:
                        item.reply.send_nowait(reply)
                    except Exception as error:
                        self._note(error, "a request could not be answered")
        finally:
            if edge is not None:
                edge.end_burst()

    def _answer_in_order(
        self, ordered: OrderedReplies, items: Sequence[QueuedRequest], replies: Sequence[Reply]
    ) -> None:
        for _ in range(2):  # what one has left undone is done by the next
            try:
                ordered.answer(zip(items, replies, strict=True))
                return
            except Exception as error:
                self._note(error, "requests could not be answered in their order")
        for item, reply in zip(items, replies, strict=True):
            with suppress(Exception):  # mostly it was answered
                item.answer(reply)

    # Defects.

    def _note(self, error: Exception, what: str) -> None:
        self.failures.note("scheduler", error, f"model '{self.name}': {what}")

    def _count_failed(self, items: Iterable[QueuedRequest], reason: FailureReason, now: float) -> None:
        """Count failures; no answer depends on that."""
        try:
            for item in items:
                self.statistics.count_failure(reason, now - item.arrival)
        except Exception as error:
            self._note(error, "failed requests were not counted")

    def _defect(self) -> Internal:
        return Internal(f"the scheduler of model '{self.name}' failed unexpectedly; the server's log has the details")

    def _refuse_defective(self, item: QueuedRequest, error: Exception) -> None:
        """Answer a request whose queueing has raised, and undo what was noted of it."""
        self._note(error, "a request could not be queued")
        with suppress(trio.WouldBlock):  # it was answered, and what came behind that has failed
            item.answer(self._defect())
        item.is_cancelled = True
        try:
            self._withdraw(item)
        except Exception as another:
            self._wake_at = self._recover(another)

    def _handle_failed(self, message: SchedulerMessage, error: Exception) -> None:
        if isinstance(message, Submit):
            self._refuse_defective(message.item, error)
            return
        self._note(error, f"{type(message).__name__} was not noted whole")
        if isinstance(message, InstanceGone):
            self._forget(message.instance)
        self._wake_at = self._recover(error)

    def _finish_failed(self, done: BatchDone, error: Exception) -> tuple[Sequence[QueuedRequest], Sequence[Reply]]:
        """In place of `_finish`, which has raised: what it has noted is unknown, so the instance is restarted."""
        self._note(error, f"the end of a batch was not noted; instance '{done.instance.name}' is started anew")
        self._forget(done.instance, done.given)
        if done.replies is None:  # their streams end with the instance
            return (), ()
        return [*done.batch], [self._defect()] * len(done.batch)

    def _recover(self, error: Exception) -> float:
        """In place of `_flush`, which has raised: rebuild the policy and try again."""
        self._note(error, "what can run was not found; trying again with what waits")
        try:
            self._renew()
            return self._flush(self._now())
        except Exception as another:
            self._note(another, "what can run was not found again; all that waits fails")
        try:
            self._fail_waiting(self._defect())
        except Exception as another:
            self._note(another, "what waits could not be failed whole")
        return math.inf

    @abc.abstractmethod
    def _finish(self, done: BatchDone, now: float) -> tuple[Sequence[QueuedRequest], Sequence[Reply]]:
        """Mark the batch's instance as idle, or gone. Returns the requests to be answered, with their replies."""

    @abc.abstractmethod
    def _count(self, done: BatchDone, now: float) -> None:
        """Count a batch whose requests are answered, as far as `_finish` has not."""

    @abc.abstractmethod
    def _handle(self, message: SchedulerMessage) -> None:
        """Handle any message but `BatchDone`."""

    @abc.abstractmethod
    def _submit(self, item: QueuedRequest) -> None:
        """Queue a request, or answer it. Raises StoppedAccepting."""

    @abc.abstractmethod
    def _flush(self, now: float) -> float:
        """Refuse requests that have waited too long, and give idle instances what can run. Returns when to do so again
        though no message has come; `math.inf` for never."""

    @abc.abstractmethod
    def _renew(self) -> None:
        """The policy has raised, and its state is unknown: replace it by a new one with all that is known to wait."""

    @abc.abstractmethod
    def _fail_waiting(self, error: ServerError) -> None:
        """Answer all that waits with an error, and replace the policy."""

    @abc.abstractmethod
    def _withdraw(self, item: QueuedRequest) -> None:
        """Remove a request, as far as it was queued."""

    @abc.abstractmethod
    def _forget(self, instance: InstanceAddress, ended: Execute | None = None) -> None:
        """Close an instance's address; what it runs fails, but for the batch that it has just `ended`."""

    @abc.abstractmethod
    def _has_running(self) -> bool:
        """Whether an instance has a request that has not ended."""

    @abc.abstractmethod
    def _fail_all(self, error: Unavailable) -> None:
        """Answer everything that waits or runs with an error, at the scheduler's end."""

    def _end_life(self, instance: InstanceAddress) -> None:
        """An instance takes no more batches. After the last one, requests wait `restart_wait` seconds for a restart;
        `RestartDelayed` ends that."""
        if instance in self._live:
            self._live.discard(instance)
            if not self._live:
                self._held_until = self._now() + self.restart_wait if self.restart_wait else -math.inf

    def _is_held(self) -> bool:
        """Whether requests may wait for an instance although none lives."""
        return self._now() < self._held_until

    def _no_instance(self) -> Unavailable:
        return Unavailable(f"model '{self.name}' is not ready: all of its instances have stopped and are restarting")
