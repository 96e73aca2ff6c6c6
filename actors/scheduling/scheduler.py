"""Scheduler of a model without sequences: a queue whose batches go to idle model instances.

Flow: core → model → [scheduler] → model instance → [scheduler] → reply channel → core.
Triton's default scheduler and its dynamic batcher are this actor with two policies (`actors.scheduling.batching`).
Started and owned by the model actor; knows instances by their addresses only. Drained it finishes, cancelled it fails
what it holds (`actors.scheduling.base`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import trio

from actors.mail.messages import (
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
from actors.mail.reply_slot import Reply
from actors.metrics.statistics import FailureReason
from actors.scheduling.base import SchedulerLoop
from actors.scheduling.batching.policy import Batch, BatchingPolicy, BatchTuning
from actors.scheduling.compute_charges import charge_compute
from backends.interface import NotBegun
from protocol.errors import ServerError, Unavailable

_arrival = attrgetter("arrival")


@dataclass(eq=False, slots=True)
class Scheduler(SchedulerLoop):
    """A `SchedulerLoop` for independent requests.

    With `runs_ahead` a busy instance is given its next batch in advance, if that would not grow by waiting. `tuning`
    learns from each batch.
    """

    policy: BatchingPolicy
    is_decoupled: bool = False
    runs_ahead: bool = False
    tuning: BatchTuning | None = None
    _idle: deque[InstanceAddress] = field(default_factory=deque)
    # In the order of their beginnings.
    _running: dict[InstanceAddress, Execute] = field(default_factory=dict)
    # The batches that busy instances were given in advance, if `runs_ahead`.
    _ahead: dict[InstanceAddress, Execute] = field(default_factory=dict)
    _streaming: set[QueuedRequest] = field(default_factory=set)
    # What the policy holds; known here too, so that no request is lost when it fails.
    _queued: set[QueuedRequest] = field(default_factory=set)

    def _flush(self, now: float) -> float:
        policy = self.policy
        if not policy.waiting:
            return math.inf
        if policy.can_expire:
            self._refuse_expired(now)
        self._assign(now)
        if not self._live and not self._is_held():  # the restart has taken too long
            self._fail_waiting(self._no_instance())
        policy = self.policy  # renewed, if that of a batch that ran meanwhile has failed
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
                try:
                    self._withdraw(item)
                    self.statistics.count_failure(FailureReason.CANCELED, trio.current_time() - item.arrival)
                finally:
                    if self.ordered is not None:
                        self.ordered.answer(())
            case StreamEnded():
                self._streaming.discard(message.item)
                if isinstance(message.error, NotBegun):
                    self._take_back(message.item)
                else:
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
            raise stopped_accepting()
        if not self._live and not self._is_held():
            item.answer(self._no_instance())
            self.statistics.count_failure(FailureReason.OTHER, 0.0)
        elif self.policy.add(item) or self._has_made_room(item):
            self._queued.add(item)
            if self.ordered is not None:
                self.ordered.expect(item)
        else:
            item.answer(_queue_is_full(item))
            self.statistics.count_failure(FailureReason.REJECTED, 0.0)

    def _take_back(self, item: QueuedRequest) -> None:
        """Queue a request again that an instance had, and did not begin before it died."""
        if item.is_cancelled:
            return
        if not self._live and not self._is_held():
            self._fail([item], self._no_instance())
        elif self.policy.add(item):
            self._queued.add(item)
        else:
            self._fail([item], _queue_is_full(item))

    def _has_made_room(self, item: QueuedRequest) -> bool:
        """Try again to queue a request, after idle instances have taken some of what fills the queue."""
        if not self._idle:
            return False
        self._assign(self._now())
        return self.policy.add(item)

    def _refuse_expired(self, now: float) -> None:
        expired = self.policy.take_expired(now)
        if not expired:
            return
        self._queued.difference_update(expired)
        self._count_failed(expired, FailureReason.REJECTED, now)
        self._answer(expired, [Unavailable("Request timeout expired")] * len(expired))

    def _finish(self, done: BatchDone, now: float) -> tuple[Sequence[QueuedRequest], Sequence[Reply]]:
        instance = done.instance
        is_ahead = self._ahead.get(instance) is done.given  # an instance that is stopped ends its batches in any order
        given = self._ahead if is_ahead else self._running
        if given.get(instance) is not done.given:  # it was given up with its instance, and answered then
            return (), ()
        del given[instance]
        if self.tuning is not None:
            self._learn(self.tuning, done, now)
        if instance in self._ahead:
            self._running[instance] = self._ahead.pop(instance)
        elif done.is_alive and not is_ahead:
            self._rest(instance)
        if not done.is_alive:
            self._retire(instance)
        return ((), ()) if done.replies is None else (done.batch, done.replies)

    def _learn(self, tuning: BatchTuning, done: BatchDone, now: float) -> None:
        try:
            tuning.completed(done.batch, started=done.started, now=now)
        except Exception as error:
            self._note(error, "nothing was learned of a batch")

    def _count(self, done: BatchDone, now: float) -> None:
        self.statistics.count_batch(done, now)
        for item in done.batch:
            if item.request.charge is not None:
                self._charge(done)
                break

    def _charge(self, done: BatchDone) -> None:
        """Charge the keys of a batch's requests."""
        per_row = charge_compute(done)
        if per_row is not None:
            self.policy.settle(done.batch, per_row)

    def _rest(self, instance: InstanceAddress) -> None:
        """Mark an instance as idle, or close it if it was removed."""
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
        """Note the new number of instances."""
        if self.tuning is not None:
            self.tuning.resize(instances)

    def _lose(self, instance: InstanceAddress) -> None:
        """Handle the end of an instance, which has reported every batch that it took."""
        self._removed.discard(instance.name)
        if instance in self._idle:
            self._idle.remove(instance)
        for item in self._take_given(instance):  # handed over in the moment in which it died
            self._streaming.discard(item)
            self._take_back(item)
        self._retire(instance)

    def _take_given(self, instance: InstanceAddress) -> list[QueuedRequest]:
        """What an instance was given; its own report of that, if one comes, is ignored."""
        given = (self._running.pop(instance, None), self._ahead.pop(instance, None))
        return [item for message in given if message is not None for item in message.batch]

    def _fail_given(self, instance: InstanceAddress, error: ServerError) -> None:
        items = self._take_given(instance)
        if items:
            self._streaming.difference_update(items)
            self._fail(items, error)
            if self.is_decoupled:  # nor are its responses
                for item in items:
                    item.is_cancelled = True

    def _retire(self, instance: InstanceAddress) -> None:
        self._end_life(instance)
        if not self._live and not self._is_held():
            self._fail_waiting(self._no_instance())

    def _assign(self, now: float) -> None:
        while self._idle and self.policy.waiting:
            batch = self.policy.next_batch(now)
            if batch is None:
                return
            instance = self._idle.popleft()
            try:
                self._hand_over(instance, batch, self._running)
            except Exception:
                if instance not in self._running:
                    self._idle.append(instance)
                raise
        if self.runs_ahead:
            self._assign_ahead(now)

    def _assign_ahead(self, now: float) -> None:
        """Give busy instances the batch after their present one, those first that have run for longest."""
        for instance in tuple(self._running):
            if instance in self._ahead or instance not in self._live or instance.name in self._removed:
                continue
            if instance not in self._running:  # it has ended, within the call that gave it the one after
                continue
            batch = self.policy.next_batch(now, is_ahead=True)
            if batch is None:
                return
            self._hand_over(instance, batch, self._ahead)
            if instance.prefetch is not None:
                instance.prefetch()

    def _hand_over(self, instance: InstanceAddress, batch: Batch, running: dict[InstanceAddress, Execute]) -> None:
        reason = batch.reason
        if reason is not None:
            self.statistics.flushes[reason] += 1
        if self.is_decoupled:
            self._streaming.update(batch.items)
        message = running[instance] = Execute(batch.items)
        self._queued.difference_update(batch.items)
        try:
            instance.inbox.send_nowait(message)
        except Exception as error:
            # Whether it has the batch is unknown.
            self._note(error, f"instance '{instance.name}' could not be given a batch, and is started anew")
            self._forget(instance)

    # Defects.

    def _renew(self) -> None:
        self.policy = self.policy.renewed()
        queued, self._queued = self._queued, set()
        for item in sorted(queued, key=_arrival):
            if item.is_cancelled:
                continue
            try:
                is_queued = self.policy.add(item)
            except Exception as error:
                self._refuse_defective(item, error)
            else:
                if is_queued:
                    self._queued.add(item)
                else:
                    self._answer([item], [self._defect()])

    def _fail_waiting(self, error: ServerError) -> None:
        self.policy = self.policy.renewed()
        queued, self._queued = self._queued, set()
        self._fail(sorted(queued, key=_arrival), error)

    def _withdraw(self, item: QueuedRequest) -> None:
        self._queued.discard(item)
        self.policy.abandon(item)

    def _forget(self, instance: InstanceAddress, ended: Execute | None = None) -> None:
        instance.inbox.close()
        for given in (self._running, self._ahead):
            if ended is not None and given.get(instance) is ended:
                del given[instance]
        if instance in self._idle:
            self._idle.remove(instance)
        self._fail_given(instance, self._defect())
        self._retire(instance)

    def _fail(self, items: Sequence[QueuedRequest], error: ServerError) -> None:
        # Those that were abandoned were counted then.
        self._count_failed([item for item in items if not item.is_cancelled], FailureReason.OTHER, trio.current_time())
        self._answer(items, [error] * len(items))

    def _fail_all(self, error: Unavailable) -> None:
        waiting, self._queued = sorted(self._queued, key=_arrival), set()
        self.policy = self.policy.renewed()
        self._fail(waiting, error)
        for message in (*self._running.values(), *self._ahead.values()):
            self._fail([item for item in message.batch if item not in self._streaming], error)
        for item in self._streaming:
            item.failure = error
            item.stream.close()
        self._running.clear()
        self._ahead.clear()


def _queue_is_full(item: QueuedRequest) -> Unavailable:
    return Unavailable(f"[request id: {item.request.id or '<id_unknown>'}] Exceeds maximum queue size")
