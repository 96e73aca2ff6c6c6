"""The sequence batcher's policy: correlation ids, slots and the backlog, and when a sequence ends.

Plain and synchronous, as all policies (`actors.scheduling.batching.policy`): it takes `now`, imports no Trio and
answers no request. Batches are formed by a strategy (`actors.scheduling.sequence.strategy`).
"""

from __future__ import annotations

import heapq
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count

from actors.mail.messages import QueuedRequest, ShapeKey
from actors.metrics.statistics import FlushReason
from actors.scheduling.batching.queue_policy import Deadlines
from actors.scheduling.sequence.records import CorrelationId, Instance, LiveSequence, Slot, Step
from actors.scheduling.sequence.strategy import DirectStrategy, OldestStrategy, Rows, SequenceStrategy
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest
from repository.model_config import ControlKind, ModelConfig, ModelSequenceBatching, StrategyDirect

logger = logging.getLogger("trioton.sequence_batcher")


class SequencePolicy:
    """The rules (Triton: "Sequence batcher"):

    1. A request is one step of the sequence that its correlation id names, and has a batch size of 1.
    2. The first request of a sequence has the START flag. START for an id that is alive ends the old sequence without
       END: what of it waits runs first, then the new one goes on in the same place.
    3. With the END flag the id is forgotten at once. The slot is free when that request is handed to the instance; what
       of the next sequence waits there runs when that one has ended.
    4. A new sequence gets the free slot of the lowest index, of any instance, and keeps it: all its requests run there,
       in order, one at a time. Without a free slot it waits in the backlog, as do the requests that follow; whatever
       slot becomes free goes to the sequence that has been there longest.
    5. A request's timeout limits its time in the backlog; when it is over the whole sequence is given up.
    6. A sequence in a slot of which nothing waits or runs for `max_sequence_idle_microseconds` is forgotten.
       (Triton's clock starts with the last request, so a step that takes longer ends its own sequence there.)
    7. A request that is abandoned takes the rest of its sequence with it, up to a START; the slot is free at once.
    8. Iterative sequences: a request is a sequence by itself, under an id made here, and START in its first round. It
       has its slot until a round ends it.
    9. Sequences that have the same id run one after the other: a model may know them by it.

    So an instance may be given a batch while it runs others: no two of them have steps of one sequence, slot or id.
    Every slot that has something to run has offered exactly that to the strategy, so nothing is ever searched for.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        key_of_states: Callable[[Step], ShapeKey] = lambda step: None,
        on_offered: Callable[[QueuedRequest], None] | None = None,
    ) -> None:
        """
        Args:
            key_of_states: what of a step's states must agree within a batch, besides the shapes of its inputs.
            on_offered: told of each request when it first competes for a batch.
        """
        self._config = config
        batching = config.sequence_batching or ModelSequenceBatching()
        self._model = config.name
        self.is_iterative = batching.iterative_sequence
        self._idle_seconds = batching.max_sequence_idle_microseconds / 1e6
        self._strategy: SequenceStrategy = (
            DirectStrategy(batching.direct or StrategyDirect(), max_batch_size=config.max_batch_size)
            if batching.oldest is None
            else OldestStrategy(batching.oldest, max_batch_size=config.max_batch_size)
        )
        self._id_control = _id_control(batching)
        self._key_of_states = key_of_states
        self._on_offered = on_offered
        self._ids = count(1)
        self._steps: dict[QueuedRequest, Step] = {}
        self._running_count = 0
        self._open: dict[CorrelationId, LiveSequence] = {}
        # The sequences of each id that are not over, the one whose steps may run first.
        self._lines: dict[CorrelationId, dict[LiveSequence, None]] = {}
        self._backlog: dict[LiveSequence, None] = {}
        self._deadlines = Deadlines()  # of requests in the backlog
        self._idle_since: dict[LiveSequence, float] = {}  # in this order
        # Those that are or were in use, and the next one: a configuration may give an instance any number of them.
        self._slots: dict[Instance, list[Slot]] = {}
        self._free: list[tuple[int, int, Slot]] = []  # a heap
        self._slot_numbers = count()

    @property
    def waiting(self) -> int:
        """How many requests wait, for a slot or in one."""
        return len(self._steps) - self._running_count

    @property
    def open_count(self) -> int:
        """How many sequences have begun and not ended."""
        return len(self._open)

    def add_instance(self, instance: Instance) -> None:
        """Give sequences slots on an instance; nothing for one that is known."""
        if instance in self._slots:
            return
        self._strategy.add_instance(instance)
        self._slots[instance] = []
        self._make_slot(instance)

    def remove_instance(self, instance: Instance) -> list[QueuedRequest]:
        """The sequences on an instance that is lost are over: what of them waits comes back. What runs does not."""
        waiting: list[QueuedRequest] = []
        slots = self._slots.pop(instance, None)
        if slots is not None:  # it is not known to be lost already
            for slot in slots:
                if slot.sequence is not None:
                    waiting += self._drop(slot.sequence)
            self._strategy.remove_instance(instance)
            self._free = [each for each in self._free if each[2].instance != instance]
            heapq.heapify(self._free)
        return waiting

    def continues(self, request: InferenceRequest) -> bool:
        """Whether a request belongs to a sequence that is alive."""
        return not self.is_iterative and not request.sequence_start and request.sequence_id in self._open

    def is_waiting(self, item: QueuedRequest) -> bool:
        """Whether a request is here and does not run."""
        step = self._steps.get(item)
        return step is not None and step.sequence.running is not step

    def add(self, item: QueuedRequest, now: float) -> None:
        """Queue a request.

        Raises:
            InvalidArgument: it breaks rule 1 or 2, or its id is no value for the model's control tensor.
        """
        request = item.request
        if item.batch_size > 1:
            raise InvalidArgument(
                f"inference request to model '{self._model}' must specify batch-size 1 due to requirements of sequence "
                "batcher"
            )
        if self.is_iterative:
            sequence = LiveSequence(next(self._ids))
            step = Step(sequence, item, request, item.shape_key, is_start=True, is_end=False)
        else:
            sequence = self._sequence_of(request)
            is_end = request.sequence_end
            step = Step(sequence, item, request, item.shape_key, is_start=request.sequence_start, is_end=is_end)
            if is_end:
                self._close(sequence)
        self._steps[item] = step
        sequence.waiting.append(step)
        self._idle_since.pop(sequence, None)
        if sequence.slot is None:
            self._place(sequence, step, now)
        else:
            self._offer(sequence)

    def abandon(self, item: QueuedRequest) -> list[QueuedRequest]:
        """The caller of a request has gone: forget it, if it is here, and the rest of its sequence. That comes back."""
        step = self._steps.get(item)
        if step is None:
            return []
        sequence = step.sequence
        steps = list(sequence.waiting)
        start = 0 if step is sequence.running else steps.index(step)
        after = start if step is sequence.running else start + 1
        end = next((place for place in range(after, len(steps)) if steps[place].is_start), len(steps))
        if end == len(steps):
            self._close(sequence)
        if start == 0:
            self._retract(sequence)
        sequence.waiting = deque(steps[:start] + steps[end:])
        for gone in steps[start:end]:
            self._forget(gone)
        if sequence.waiting:
            self._offer(sequence)
        else:  # then it is closed, as no START was left
            self._leave(sequence)
            self._pass_turn(sequence)
        return [gone.item for gone in steps[start:end] if gone is not step]

    def take_expired(self, now: float) -> list[QueuedRequest]:
        """Forget idle sequences and give those up whose time in the backlog is over: their requests come back."""
        while self._idle_since:
            sequence, since = next(iter(self._idle_since.items()))
            if now < since + self._idle_seconds:
                break
            logger.debug("sequence %s for model '%s' was idle for too long", sequence.id, self._model)
            self._drop(sequence)
        expired: list[QueuedRequest] = []
        for item in self._deadlines.take_due(now):
            if item in self._steps:  # not given up with its sequence a moment ago
                expired += self._drop(self._steps[item].sequence)
        return expired

    def next_batch(self, instance: Instance, now: float) -> tuple[Rows, FlushReason | None] | None:
        """What an instance that can take a batch is to run at once: steps, and None for rows without a request. Each
        must be finished (`finish`). None for nothing now."""
        if instance not in self._slots:
            return None
        found = self._strategy.next_batch(instance, now)
        if found is not None:
            for step in found[0]:
                if step is not None:
                    self._begin(step, now)
        return found

    def finish(self, step: Step, now: float, *, is_rescheduled: bool = False) -> bool:
        """A step has run, well or badly. One of an iterative sequence may have to run again (`is_rescheduled`): True if
        it now waits here for its next round, False if it has been given up meanwhile."""
        sequence = step.sequence
        sequence.running = None
        slot, step.slot = step.slot, None
        assert slot is not None
        slot.running = None
        self._running_count -= 1
        if is_rescheduled and sequence.slot is not None:
            step.is_start = False
            sequence.waiting.appendleft(step)
            self._offer(sequence)
            return True
        del self._steps[step.item]
        if self.is_iterative:
            self._close(sequence)
        if sequence.slot is not None:
            if sequence.waiting:
                self._offer(sequence)
            elif not sequence.is_open:
                self._leave(sequence)
            else:
                self._idle_since[sequence] = now
        if slot.sequence is not None:  # perhaps it has moved in meanwhile
            self._offer(slot.sequence)
        self._pass_turn(sequence)
        return False

    def wake_at(self, idle: Iterable[Instance]) -> float:
        """When `take_expired`, or `next_batch` for one of the idle instances, may answer differently though nothing
        else has happened; `math.inf` for never."""
        known = (instance for instance in idle if instance in self._slots)
        wake_at = min(map(self._strategy.wake_at, known), default=math.inf)
        for since in self._idle_since.values():
            wake_at = min(wake_at, since + self._idle_seconds)
            break
        return min(wake_at, self._deadlines.next_at())

    def clear(self) -> list[QueuedRequest]:
        """Take out everything that waits; no sequence is alive then."""
        sequences = [slot.sequence for slots in self._slots.values() for slot in slots if slot.sequence is not None]
        waiting = [item for sequence in (*self._backlog, *sequences) for item in self._drop(sequence)]
        return sorted(waiting, key=lambda item: item.arrival)

    def renewed(self) -> SequencePolicy:
        """One with the same rules, that knows no instances and no sequences."""
        return SequencePolicy(self._config, key_of_states=self._key_of_states, on_offered=self._on_offered)

    def _sequence_of(self, request: InferenceRequest) -> LiveSequence:
        """The sequence that a request goes on with or starts."""
        id = request.sequence_id
        if not id:
            raise InvalidArgument(
                f"inference request to model '{self._model}' must specify a non-zero or non-empty correlation ID"
            )
        self._check_id(request)
        sequence = self._open.get(id)
        if sequence is None:
            if not request.sequence_start:
                raise InvalidArgument(
                    f"inference request for sequence {id} to model '{self._model}' must specify the START flag on the "
                    "first request of the sequence"
                )
            sequence = self._open[id] = LiveSequence(id)
            self._lines.setdefault(id, {})[sequence] = None
        elif request.sequence_start:
            logger.warning(
                "sequence %s for model '%s' has a conflict. The previous sequence did not end before this sequence "
                "start. Previous sequence will be terminated early.",
                id,
                self._model,
            )
        return sequence

    def _check_id(self, request: InferenceRequest) -> None:
        if self._id_control is None:
            return
        name, expected = self._id_control
        is_text = isinstance(request.sequence_id, str)
        if is_text is not (expected is DataType.BYTES):
            raise InvalidArgument(
                f"[request id: {request.id or '<id_unknown>'}] sequence batching control '{name}' data-type is "
                f"'{'BYTES' if is_text else 'UINT64'}', but model '{self._model}' expects '{expected.name}'"
            )

    def _place(self, sequence: LiveSequence, step: Step, now: float) -> None:
        """Give a sequence a slot, or leave it in the backlog, in which a request's timeout counts."""
        slot = self._take_free_slot() if sequence not in self._backlog else None
        if slot is not None:
            self._settle(sequence, slot)
            return
        self._backlog[sequence] = None
        timeout = step.request.timeout_microseconds
        if timeout:
            self._deadlines.set(step.item, now + timeout / 1e6)

    def _take_free_slot(self) -> Slot | None:
        if not self._free:
            return None
        slot = heapq.heappop(self._free)[2]
        if slot is self._slots[slot.instance][-1]:
            self._make_slot(slot.instance)
        return slot

    def _make_slot(self, instance: Instance) -> None:
        """Make the next slot of an instance, if it may have one more; and those that the backlog takes before it."""
        slots = self._slots[instance]
        while len(slots) < self._strategy.slots_per_instance:
            slots.append(Slot(instance, len(slots)))
            self._fill(slots[-1])
            if slots[-1].sequence is None:
                return

    def _settle(self, sequence: LiveSequence, slot: Slot) -> None:
        slot.sequence = sequence
        sequence.slot = slot
        self._offer(sequence)

    def _fill(self, slot: Slot) -> None:
        """Give a slot that is free to the backlog, or keep it for the next sequence."""
        for sequence in self._backlog:
            self._leave_backlog(sequence)
            self._settle(sequence, slot)
            return
        heapq.heappush(self._free, (slot.index, next(self._slot_numbers), slot))

    def _leave_backlog(self, sequence: LiveSequence) -> None:
        del self._backlog[sequence]
        for step in sequence.waiting:
            self._deadlines.discard(step.item)

    def _offer(self, sequence: LiveSequence) -> None:
        """Offer the strategy the next step of a sequence, if it has a slot, nothing of it runs and nothing is before it
        there or under its id."""
        if sequence.slot is None or sequence.running is not None or sequence.is_offered or not sequence.waiting:
            return
        if sequence.slot.running is not None or not (self.is_iterative or self._has_turn(sequence)):
            return
        step = sequence.waiting[0]
        states = self._key_of_states(step)
        step.item.shape_key = step.shape_key if states is None else (*(step.shape_key or ()), *states)
        sequence.is_offered = True
        self._strategy.offer(step)
        if self._on_offered is not None and step.first_started is None:
            self._on_offered(step.item)

    def _has_turn(self, sequence: LiveSequence) -> bool:
        return next(iter(self._lines[sequence.id])) is sequence

    def _pass_turn(self, sequence: LiveSequence) -> None:
        """If a sequence is over, the next one of the same id may run."""
        if sequence.is_open or sequence.waiting or sequence.running is not None:
            return
        line = self._lines.get(sequence.id, {})
        if sequence not in line:
            return
        del line[sequence]
        if line:
            self._offer(next(iter(line)))
        else:
            del self._lines[sequence.id]

    def _retract(self, sequence: LiveSequence) -> None:
        if sequence.is_offered:
            sequence.is_offered = False
            self._strategy.withdraw(sequence.waiting[0])

    def _begin(self, step: Step, now: float) -> None:
        sequence = step.sequence
        sequence.waiting.popleft()
        sequence.is_offered = False
        sequence.running = step
        slot = step.slot = sequence.slot
        assert slot is not None
        slot.running = step
        self._running_count += 1
        if step.first_started is None:
            step.first_started = now
        if not self.is_iterative and not sequence.waiting and not sequence.is_open:
            self._leave(sequence)

    def _close(self, sequence: LiveSequence) -> None:
        """No more requests can come."""
        sequence.is_open = False
        if self._open.get(sequence.id) is sequence:
            del self._open[sequence.id]

    def _leave(self, sequence: LiveSequence) -> None:
        """A sequence gives up its place; nothing of it waits any more."""
        slot, sequence.slot = sequence.slot, None
        if slot is None:
            self._backlog.pop(sequence, None)
            return
        slot.sequence = None
        if slot.instance in self._slots:
            self._fill(slot)

    def _drop(self, sequence: LiveSequence) -> list[QueuedRequest]:
        """A sequence is over at once, wherever it is: its requests that wait."""
        self._idle_since.pop(sequence, None)
        self._close(sequence)
        if sequence in self._backlog:
            self._leave_backlog(sequence)
        self._retract(sequence)
        waiting = [step.item for step in sequence.waiting]
        for step in sequence.waiting:
            self._forget(step)
        sequence.waiting.clear()
        self._leave(sequence)
        self._pass_turn(sequence)
        return waiting

    def _forget(self, step: Step) -> None:
        del self._steps[step.item]
        self._deadlines.discard(step.item)


def _id_control(batching: ModelSequenceBatching) -> tuple[str, DataType] | None:
    """The name and datatype of the control tensor with the correlation id, if there is one."""
    for entry in batching.control_input:
        for control in entry.control:
            if control.kind is ControlKind.SEQUENCE_CORRID:
                return entry.name, control.data_type
    return None
