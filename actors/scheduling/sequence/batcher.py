"""Sequence batcher: the scheduler of stateful models, which runs the requests of a sequence in order on one instance.

Flow: core → model → [sequence batcher] → model instance → [sequence batcher] → reply channel → core.
Used for models with `sequence_batching`; started and owned by the model actor. Its rules are in
`actors.scheduling.sequence.policy`, the tensors that it adds to requests in `actors.scheduling.sequence.tensors`. A
request that is cancelled takes the rest of its sequence with it; an instance that dies, all of its sequences.

An instance has an address for each batch that it runs at once (`actors.instance.slot`), and at most one of them is
idle. The policy knows instances by their names: a sequence stays on one, whatever address its steps go to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

import trio
from msgspec.structs import replace

from actors.mail.messages import (
    Abandon,
    BatchDone,
    Drain,
    Execute,
    InstanceAddress,
    InstanceGone,
    InstanceReady,
    QueuedRequest,
    RestartDelayed,
    SchedulerMessage,
    StreamEnded,
    Submit,
    stopped_accepting,
)
from actors.mail.reply_slot import Reply
from actors.metrics.response_statistics import COUNTED_RESPONSES
from actors.metrics.statistics import FailureReason, FlushReason, VersionStatistics
from actors.scheduling.base import SchedulerLoop
from actors.scheduling.batching.held import NO_HOLD, SchedulerHold
from actors.scheduling.compute_charges import charge_compute
from actors.scheduling.ordered_replies import OrderedReplies
from actors.scheduling.sequence.held import HeldSequencePolicy
from actors.scheduling.sequence.policy import SequencePolicy
from actors.scheduling.sequence.records import Step
from actors.scheduling.sequence.strategy import Rows
from actors.scheduling.sequence.tensors import SequenceTensors
from backends.interface import Rescheduled
from protocol.errors import Cancelled, Internal, ServerError, Unavailable
from protocol.failures import CallbackFailures
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from repository.model_config import ModelConfig


def sequence_batcher(
    config: ModelConfig,
    statistics: VersionStatistics,
    initial_states: Mapping[str, Tensor],
    *,
    restart_wait: float = 0.0,
    hold: SchedulerHold = NO_HOLD,
    failures: CallbackFailures | None = None,
) -> SequenceBatcher:
    """The sequence batcher of one model version; `initial_states` are those of `repository.initial_state`, and requests
    wait `restart_wait` seconds for an instance that is started again. In tests nothing runs before the end of `hold`.
    `failures` counts its defects."""
    tensors = SequenceTensors(config, initial_states)
    batching = config.sequence_batching
    oldest = None if batching is None else batching.oldest
    if oldest is not None:
        statistics.flushes = Counter(dict.fromkeys(FlushReason, 0))
    ordered = OrderedReplies() if config.preserves_ordering and not config.is_decoupled else None
    make_policy = SequencePolicy if hold == NO_HOLD else partial(HeldSequencePolicy, hold)
    policy = make_policy(
        config, key_of_states=tensors.key_of_states, on_offered=_take_turn if ordered is None else ordered.expect
    )
    return SequenceBatcher(
        config.name,
        policy,
        statistics,
        ordered,
        failures=failures or CallbackFailures(),
        tensors=tensors,
        is_decoupled=config.is_decoupled,
        restart_wait=restart_wait,
    )


@dataclass(eq=False, slots=True)
class SequenceBatcher(SchedulerLoop):
    """A `SchedulerLoop` for sequences. One actor serves all slots, which are records of the policy: a request costs no
    more task switches than in the other scheduler."""

    policy: SequencePolicy
    tensors: SequenceTensors = field(kw_only=True)
    is_decoupled: bool = False
    _idle: dict[InstanceAddress, None] = field(default_factory=dict)  # the one that is idle longest first
    _running: dict[InstanceAddress, Rows] = field(default_factory=dict)
    _lets_sequences_end: bool = False
    # Requests of decoupled models from their first round to the end of their stream.
    _streaming: dict[QueuedRequest, Step] = field(default_factory=dict)
    # Those of them that have asked for another round.
    _rescheduled: set[QueuedRequest] = field(default_factory=set)
    # Those whose batch has ended, but whose stream has not, where only its end tells what comes next.
    _unended: dict[QueuedRequest, InstanceAddress] = field(default_factory=dict)
    # All that have neither been answered nor abandoned: known here too, so that none is lost when the policy fails.
    _accepted: set[QueuedRequest] = field(default_factory=set)
    # Those that run a batch of before the policy failed. Until that ends, the new one does not know their instance.
    _outdated: set[InstanceAddress] = field(default_factory=set)

    def _flush(self, now: float) -> float:
        self._give_up_expired(now)
        self._assign(now)
        if self._live or not self.policy.waiting:
            return self._next_wake()
        if self._is_held():
            return min(self._next_wake(), self._held_until)
        self._fail(self.policy.clear(), self._no_instance())  # the restart has taken too long
        return self._next_wake()

    def _next_wake(self) -> float:
        return self.policy.wake_at(instance.name for instance in self._idle)

    def _has_running(self) -> bool:
        return bool(self._running or self._streaming or (self._lets_sequences_end and self.policy.open_count))

    def _handle(self, message: SchedulerMessage) -> None:
        match message:
            case Submit(item):
                self._submit(item)
            case Abandon(item):
                self._abandon(item)
            case StreamEnded():
                self._end_stream(message)
            case InstanceReady(instance):
                self._live.add(instance)
                self._rest(instance)
            case InstanceGone(instance):
                self._lose(instance)
            case RestartDelayed():
                self._held_until = -math.inf  # those that wait are refused when the task looks
            case Drain(lets_sequences_end):
                self._is_draining = True
                self._lets_sequences_end = lets_sequences_end

    def _submit(self, item: QueuedRequest) -> None:
        if self._is_draining and not self.policy.continues(item.request):
            raise stopped_accepting()
        if not self._live and not self._is_held():
            self._refuse(item, self._no_instance())
            self.statistics.count_failure(FailureReason.OTHER, 0.0)
        else:
            try:
                self.policy.add(item, trio.current_time())
            except ServerError as error:
                self._refuse(item, error)
            else:
                self._accepted.add(item)

    def _refuse(self, item: QueuedRequest, error: ServerError) -> None:
        item.answer(error)
        if item.turn is not None:
            item.turn.pass_by()

    def _abandon(self, item: QueuedRequest) -> None:
        self._accepted.discard(item)
        self._count_failed([item], FailureReason.CANCELED, trio.current_time())
        if self.policy.is_waiting(item):
            self._streaming.pop(item, None)
        rest = self.policy.abandon(item)
        self._fail(rest, Cancelled("an earlier request of the sequence was cancelled"), FailureReason.CANCELED)

    def _give_up_expired(self, now: float) -> None:
        expired = self.policy.take_expired(now)
        if expired:
            error = Unavailable("timeout of the corresponding sequence has been expired")
            self._fail(expired, error, FailureReason.REJECTED)

    def _assign(self, now: float) -> None:
        for instance in tuple(self._idle):
            if instance not in self._idle:  # a batch that ended within the call has brought it another one
                continue
            found = self.policy.next_batch(instance.name, now)
            if found is None:
                continue
            rows, reason = found
            if reason is not None:
                self.statistics.flushes[reason] += 1
            try:
                batch = self._dressed(rows)
            except Exception as error:
                self._note(error, "a batch could not be made")
                self._fail_rows(rows, now)
                continue
            del self._idle[instance]
            self._running[instance] = rows
            try:
                instance.inbox.send_nowait(Execute(batch, keeps_rows=True))
            except Exception as error:
                self._note(error, f"instance '{instance.name}' could not be given a batch, and is started anew")
                for address in self._addresses(instance):
                    address.inbox.close()
                    self._lose(address)

    def _dressed(self, rows: Rows) -> Sequence[QueuedRequest]:
        """The batch for an instance: the requests with what the model is told beside them, and requests for nobody."""
        steps = _real(rows)
        for step in steps:
            step.item.request = self.tensors.dressed(step)
            if self.is_decoupled:
                self._streaming[step.item] = step
                if self.tensors.has_states:
                    step.item.take_states = partial(self._take_states, step)
        return [_for_nobody(self.tensors.null(steps[0])) if step is None else step.item for step in rows]

    def _fail_rows(self, rows: Rows, now: float) -> None:
        """Fail requests that no instance has been given; the task looks at what else waits."""
        steps = _real(rows)
        for step in steps:
            self.policy.finish(step, now)
        self._fail([step.item for step in steps], self._defect())
        self._wake_task()

    def _finish(self, done: BatchDone, now: float) -> tuple[Sequence[QueuedRequest], Sequence[Reply]]:
        rows = self._running.pop(done.instance, None)
        if rows is None:  # given up with its instance, or when the policy failed
            self._take_up(done)
            return (), ()
        self._note_end(done)  # before slots become free, so that nobody moves in where an instance has died
        if done.replies is None:
            self._finish_round(done, _real(rows), now)
            return (), ()
        given = [reply for step, reply in zip(rows, done.replies, strict=True) if step is not None]
        return self._finish_replies(done, _real(rows), given, now)

    def _take_up(self, done: BatchDone) -> None:
        """Add an instance to the new policy once it has ended what it ran when the old one failed."""
        if done.instance in self._outdated:
            self._outdated.discard(done.instance)
            self._note_end(done)

    def _note_end(self, done: BatchDone) -> None:
        """A batch has ended, and with it perhaps the address, or all of the instance."""
        if done.has_died:
            self._lose(done.instance)
        elif done.is_alive:
            self._rest(done.instance)
        else:
            self._end_life(done.instance)
            self._let_in(done.instance)

    def _rest(self, instance: InstanceAddress) -> None:
        self._idle[instance] = None
        self._let_in(instance)

    def _let_in(self, instance: InstanceAddress) -> None:
        """Let an instance have sequences, if it runs nothing of before the policy failed."""
        if not any(each.name == instance.name for each in self._outdated):
            self.policy.add_instance(instance.name)

    def _addresses(self, instance: InstanceAddress) -> list[InstanceAddress]:
        """All of an instance."""
        return [each for each in self._live if each.name == instance.name]

    def _count(self, done: BatchDone, now: float) -> None:
        """Charge its rows, which were counted one by one."""
        charge_compute(done)

    def _finish_replies(
        self, done: BatchDone, steps: Sequence[Step], given: Sequence[Reply], now: float
    ) -> tuple[Sequence[QueuedRequest], Sequence[Reply]]:
        ended: list[Step] = []
        replies: list[Reply] = []
        for step, reply in zip(steps, given, strict=True):
            reply = self.tensors.undressed(step, reply)
            is_rescheduled = self.policy.is_iterative and isinstance(reply, Rescheduled)
            if not self.policy.finish(step, now, is_rescheduled=is_rescheduled):
                ended.append(step)
                replies.append(_died(done.instance) if is_rescheduled else reply)
        items = [step.item for step in ended]
        self._accepted.difference_update(items)
        self._count_replies(done, steps, ended, replies, now)
        return items, replies

    def _count_replies(
        self, done: BatchDone, steps: Sequence[Step], ended: Sequence[Step], replies: Sequence[Reply], now: float
    ) -> None:
        items = [step.item for step in ended]
        try:
            self._count_rows(done, steps, ended, items, replies, now)
        except Exception as error:
            self._note(error, "a batch was not counted")

    def _count_rows(
        self,
        done: BatchDone,
        steps: Sequence[Step],
        ended: Sequence[Step],
        items: Sequence[QueuedRequest],
        replies: Sequence[Reply],
        now: float,
    ) -> None:
        if self.policy.is_iterative:
            # A request counts once, when it ends, and has waited until its first round; each round is an execution.
            for step, item, reply in zip(ended, items, replies, strict=True):
                started = step.first_started if step.first_started is not None else done.started
                once = replace(done, batch=[item], replies=[reply], started=started, timing=None)
                self.statistics.count_batch(once, now=now)
            self._count_execution(done, len(steps))
        else:
            self.statistics.count_batch(replace(done, batch=items, replies=replies), now=now)

    def _finish_round(self, done: BatchDone, steps: Sequence[Step], now: float) -> None:
        """A batch of a decoupled model: its requests are answered by their streams."""
        new = [step.item for step in steps if step.is_start or not self.policy.is_iterative]
        self.statistics.count_batch(replace(done, batch=new, timing=None), now=now)
        self._count_execution(done, len(steps))
        awaits_streams = self.policy.is_iterative or self.tensors.has_states
        for step in steps:
            is_rescheduled = step.item in self._rescheduled
            if awaits_streams and not is_rescheduled and step.item in self._streaming:
                self._unended[step.item] = done.instance
            else:
                self._rescheduled.discard(step.item)
                self._end_round(step, done.instance, is_rescheduled=is_rescheduled)

    def _end_round(self, step: Step, instance: InstanceAddress, *, is_rescheduled: bool) -> None:
        is_kept = self.policy.finish(step, trio.current_time(), is_rescheduled=is_rescheduled)
        if is_rescheduled and not is_kept:
            self._fail([step.item], _died(instance))

    def _take_states(self, step: Step, response: InferenceResponse) -> ServerError | None:
        """From a response of a decoupled model; the last one's count."""
        reply = self.tensors.undressed(step, response)
        return reply if isinstance(reply, ServerError) else None

    def _end_stream(self, ended: StreamEnded) -> None:
        item = ended.item
        step = self._streaming.get(item)
        if step is None:  # a row for nobody
            return
        if step.first_response is None:
            step.first_response = ended.first_response
        if self.policy.is_iterative and isinstance(ended.error, Rescheduled):
            self.tensors.undressed(step, ended.error)
            if item in self._unended:
                self._end_round(step, self._unended.pop(item), is_rescheduled=True)
            elif step.sequence.running is step:
                self._rescheduled.add(item)
            else:  # its last round is over
                self._fail([item], ended.error, FailureReason.BACKEND)
            return
        del self._streaming[item]
        self._accepted.discard(item)
        if ended.error is not None:
            step.sequence.states = step.states
        if item in self._unended:
            self._end_round(step, self._unended.pop(item), is_rescheduled=False)
        self.statistics.count_stream(replace(ended, first_response=step.first_response), now=trio.current_time())

    def _count_execution(self, done: BatchDone, requests: int) -> None:
        if done.timing is not None:
            self.statistics.count_execution(done.timing, requests, batch_size=requests)

    def _lose(self, instance: InstanceAddress) -> None:
        """An instance takes no more batches: its sequences are over. What its other addresses have ends with those."""
        if instance not in self._live:
            return
        self._end_life(instance)
        self._idle.pop(instance, None)
        self._outdated.discard(instance)  # what it had was failed with the policy
        waiting = self.policy.remove_instance(instance.name)
        unseen = _real(self._running.pop(instance, ()))  # handed over in the moment in which it died
        for step in unseen:
            self.policy.finish(step, trio.current_time())
        self._fail([*(step.item for step in unseen), *waiting], _died(instance))
        self._fail_if_none_left()

    def _fail_if_none_left(self) -> None:
        if not self._live and not self._is_held():
            self._fail(self.policy.clear(), self._no_instance())

    # Defects.

    def _renew(self) -> None:
        """End all sequences: which one has which slot, and so which state, is unknown."""
        self._fail_waiting(
            Internal(f"the sequence batcher of model '{self.name}' failed unexpectedly, and its sequences are over")
        )

    def _fail_waiting(self, error: ServerError) -> None:
        """What runs too: it belongs to sequences that are over."""
        self._outdated.update(self._running)
        self._running.clear()
        self._rescheduled.clear()
        self.policy = self.policy.renewed()
        for instance in self._live - self._outdated:
            self._rest(instance)
        left, self._accepted = self._accepted, set()
        self._fail(sorted(left, key=attrgetter("arrival")), error)

    def _withdraw(self, item: QueuedRequest) -> None:
        self._accepted.discard(item)
        rest = self.policy.abandon(item)
        self._fail(rest, Cancelled("an earlier request of the sequence was cancelled"), FailureReason.CANCELED)

    def _forget(self, instance: InstanceAddress, ended: Execute | None = None) -> None:
        for address in {*self._addresses(instance), instance}:
            address.inbox.close()
            self._live.discard(address)
            self._idle.pop(address, None)
            self._running.pop(address, None)
            self._outdated.discard(address)
        self._renew()

    def _fail(
        self, items: Iterable[QueuedRequest], error: ServerError, reason: FailureReason = FailureReason.OTHER
    ) -> None:
        """Refuse requests that wait, or whose instance has never seen them."""
        items = list(items)
        self._accepted.difference_update(items)
        self._count_failed([item for item in items if not item.is_cancelled], reason, trio.current_time())
        for item in items:
            if self.is_decoupled:
                self._streaming.pop(item, None)
                self._unended.pop(item, None)
                item.failure = error
                item.stream.close()
                if item.turn is not None:
                    item.turn.pass_by()
            else:
                item.answer(error)
            item.is_cancelled = True  # in the order of replies nobody may wait for it
        if self.ordered is not None:
            self.ordered.answer(())

    def _fail_all(self, error: Unavailable) -> None:
        self._fail_waiting(error)


def _take_turn(item: QueuedRequest) -> None:
    """Where the streams of a decoupled model keep their order."""
    if item.turn is not None and not item.is_cancelled:
        item.turn.join()


def _real(rows: Rows) -> list[Step]:
    return [step for step in rows if step is not None]


def _died(instance: InstanceAddress) -> Unavailable:
    return Unavailable(f"model instance '{instance.name}' has died, and with it the sequences that it had")


def _for_nobody(request: InferenceRequest) -> QueuedRequest:
    """A request whose answer goes nowhere and is not counted, for a row of a batch that has none."""
    reply, nowhere = trio.open_memory_channel[Reply](0)
    nowhere.close()
    return QueuedRequest(
        request,
        1,
        None,
        trio.current_time(),
        reply,
        is_cancelled=True,
        response_count=COUNTED_RESPONSES,
        is_for_nobody=True,
    )
