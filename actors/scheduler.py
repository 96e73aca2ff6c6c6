"""Scheduler: the queue of one model version, emptied into its idle instances.

Flow: core → model → [scheduler] → model instance → [scheduler] → reply channel → core.
One actor serves Triton's default scheduler and its dynamic batcher; they differ only in their policy.
Started and owned by the model actor; knows its instances by their addresses, and nothing of what they run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from actors.batching.policy import Batch, BatchingPolicy, BatchTuning
from actors.messages import (
    Abandon,
    BatchDone,
    Drain,
    Execute,
    InstanceAddress,
    InstanceGone,
    InstanceReady,
    QueuedRequest,
    RemoveInstance,
    RestartDelayed,
    SchedulerMessage,
    StreamEnded,
    Submit,
    stopped_accepting,
)
from actors.reply_slot import Reply
from actors.scheduler_loop import SchedulerLoop
from actors.statistics import FailureReason
from protocol.errors import Unavailable


@dataclass(eq=False, slots=True)
class Scheduler(SchedulerLoop):
    """A `SchedulerLoop` for requests that have nothing to do with each other.

    With `runs_ahead` a busy instance is given its next batch too, where that would not gain by waiting. `tuning` is
    told how each batch went.
    """

    policy: BatchingPolicy
    is_decoupled: bool = False
    runs_ahead: bool = False
    tuning: BatchTuning | None = None
    _idle: deque[InstanceAddress] = field(default_factory=deque)
    # The one that started first is first.
    _running: dict[InstanceAddress, Execute] = field(default_factory=dict)
    # What busy instances have for the time after their present batch, if `runs_ahead`.
    _ahead: dict[InstanceAddress, Execute] = field(default_factory=dict)
    _streaming: set[QueuedRequest] = field(default_factory=set)

    def _give_out(self, now: float) -> float:
        policy = self.policy
        if not policy.waiting:
            return math.inf
        if policy.can_expire:
            self._refuse_expired(now)
        self._assign(now)
        if not self._live and not self._is_held():  # the restart has taken too long
            self._fail(policy.clear(), self._no_instance())
        if not policy.waiting:
            return math.inf
        wake_at = policy.wake_at(is_idle=bool(self._idle))
        return wake_at if self._live else min(wake_at, self._held_until)

    def _has_running(self) -> bool:
        return bool(self._running or self._streaming)

    def _handle(self, message: SchedulerMessage) -> None:
        match message:
            case Submit(item):
                self._submit(item)
            case Abandon(item):
                self.policy.abandon(item)
                self.statistics.count_failure(FailureReason.CANCELED, trio.current_time() - item.arrival)
                if self.ordered is not None:
                    self.ordered.answer(())
            case StreamEnded():
                self._streaming.discard(message.item)
                self.statistics.count_stream(message, now=trio.current_time())
            case InstanceReady(instance):
                self._live.add(instance)
                self._rest(instance)
            case RestartDelayed():
                self._held_until = -math.inf  # those that wait are refused when the task looks
            case RemoveInstance(name):
                self._remove(name)
            case InstanceGone(instance):
                self._lose(instance)
            case Drain():
                self._is_draining = True

    def _submit(self, item: QueuedRequest) -> None:
        if self._is_draining:
            item.answer(stopped_accepting())
        elif not self._live and not self._is_held():
            item.answer(self._no_instance())
            self.statistics.count_failure(FailureReason.OTHER, 0.0)
        elif self.policy.add(item) or self._has_made_room(item):
            if self.ordered is not None:
                self.ordered.expect(item)
        else:
            request_id = item.request.id or "<id_unknown>"
            item.answer(Unavailable(f"[request id: {request_id}] Exceeds maximum queue size"))
            self.statistics.count_failure(FailureReason.REJECTED, 0.0)

    def _has_made_room(self, item: QueuedRequest) -> bool:
        """Queue it after all, if an idle instance can take some of what fills the queue."""
        if not self._idle:
            return False
        self._assign(self._now())
        return self.policy.add(item)

    def _refuse_expired(self, now: float) -> None:
        expired = self.policy.take_expired(now)
        if not expired:
            return
        for item in expired:
            self.statistics.count_failure(FailureReason.REJECTED, now - item.arrival)
        self._answer(expired, [Unavailable("Request timeout expired")] * len(expired))

    def _finish(self, done: BatchDone, now: float) -> tuple[Sequence[QueuedRequest], Sequence[Reply]]:
        instance = done.instance
        is_ahead = self._ahead.get(instance) is done.given  # an instance that is stopped ends its batches in any order
        (self._ahead if is_ahead else self._running).pop(instance, None)
        if self.tuning is not None:
            self.tuning.completed(done.batch, started=done.started, now=now)
        if instance in self._ahead:
            self._running[instance] = self._ahead.pop(instance)
        elif done.is_alive and not is_ahead:
            self._rest(instance)
        if not done.is_alive:
            self._retire(instance)
        return ((), ()) if done.replies is None else (done.batch, done.replies)

    def _count(self, done: BatchDone, now: float) -> None:
        self.statistics.count_batch(done, now=now)

    def _rest(self, instance: InstanceAddress) -> None:
        """It can take a batch, or has run its last one."""
        if instance.name in self._removed:
            instance.inbox.close()
            self._retire(instance)
        else:
            self._idle.append(instance)

    def _remove(self, name: str) -> None:
        self._removed.add(name)
        for instance in [each for each in self._idle if each.name == name]:
            self._idle.remove(instance)
            self._rest(instance)

    def resize(self, instances: int) -> None:
        """There are to be so many instances from now on."""
        if self.tuning is not None:
            self.tuning.resize(instances)

    def _lose(self, instance: InstanceAddress) -> None:
        """It has gone, and has reported every batch that it took."""
        self._removed.discard(instance.name)
        if instance in self._idle:
            self._idle.remove(instance)
        given = (self._running.pop(instance, None), self._ahead.pop(instance, None))
        unseen = [item for message in given if message is not None for item in message.batch]
        if unseen:  # handed over in the moment in which it died
            self._streaming.difference_update(unseen)
            self._fail(unseen, Unavailable(f"model instance '{instance.name}' has died"))
        self._retire(instance)

    def _retire(self, instance: InstanceAddress) -> None:
        self._end_life(instance)
        if not self._live and not self._is_held():
            self._fail(self.policy.clear(), self._no_instance())

    def _assign(self, now: float) -> None:
        while self._idle:
            batch = self.policy.next_batch(now)
            if batch is None:
                return
            instance = self._idle.popleft()
            self._hand_over(instance, batch, self._running)
        if self.runs_ahead:
            self._assign_ahead(now)

    def _assign_ahead(self, now: float) -> None:
        """Give busy instances the batch after their present one, first those that will be done first."""
        for instance in self._running:
            if instance in self._ahead or instance not in self._live or instance.name in self._removed:
                continue
            batch = self.policy.next_batch(now, is_ahead=True)
            if batch is None:
                return
            self._hand_over(instance, batch, self._ahead)
            if instance.take_ahead is not None:
                instance.take_ahead()

    def _hand_over(self, instance: InstanceAddress, batch: Batch, running: dict[InstanceAddress, Execute]) -> None:
        reason = batch.reason
        if reason is not None:
            self.statistics.flushes[reason] += 1
        if self.is_decoupled:
            self._streaming.update(batch.items)
        message = running[instance] = Execute(batch.items)
        instance.inbox.send_nowait(message)

    def _fail(self, items: Sequence[QueuedRequest], error: Unavailable) -> None:
        now = trio.current_time()
        for item in items:
            if not item.is_cancelled:  # counted when it was abandoned
                self.statistics.count_failure(FailureReason.OTHER, now - item.arrival)
        self._answer(items, [error] * len(items))

    def _fail_all(self, error: Unavailable) -> None:
        self._fail(self.policy.clear(), error)
        for message in (*self._running.values(), *self._ahead.values()):
            self._fail([item for item in message.batch if item not in self._streaming], error)
        for item in self._streaming:
            item.failure = error
            item.stream.close()
        self._running.clear()
        self._ahead.clear()
