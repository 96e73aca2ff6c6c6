"""Batch forming of the sequence batcher: Triton's scheduling strategies `direct` and `oldest`.

Plain and synchronous. `actors.scheduling.sequence.policy` offers a strategy the next step of each sequence that has a
slot, and asks it for a batch for each idle instance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from actors.mail.messages import QueuedRequest
from actors.metrics.statistics import FlushReason
from actors.scheduling.batching.dynamic import DynamicBatchingPolicy
from actors.scheduling.sequence.records import Instance, Step
from repository.model_config import ModelDynamicBatching, StrategyDirect, StrategyOldest

# The steps of one batch; None is a row without a request.
Rows: TypeAlias = Sequence[Step | None]


class SequenceStrategy(Protocol):
    """A step is offered when it may run: it has a slot, and nothing of its sequence runs."""

    @property
    def slots_per_instance(self) -> int: ...

    def add_instance(self, instance: Instance) -> None: ...

    def remove_instance(self, instance: Instance) -> None:
        """Forget an instance and what was offered for it."""

    def offer(self, step: Step) -> None: ...

    def withdraw(self, step: Step) -> None:
        """Take an offered step back; it will not run."""

    def next_batch(self, instance: Instance, now: float) -> tuple[Rows, FlushReason | None] | None:
        """What the instance, which can take a batch, is to run at once; None for nothing now. The reason is None where
        nothing is batched by a rule that has reasons."""

    def wake_at(self, instance: Instance) -> float:
        """When `next_batch` may answer differently though nothing else has happened; `math.inf` for never."""


class DirectStrategy:
    """Each slot is a row: a sequence keeps its place in the batch, so a model may keep state by row.

    1. An instance has `max_batch_size` slots (1 for a model without batching).
    2. A batch has the next step of every slot. A slot below the highest one with a step, but without a step itself,
       is a row without a request: the model is told so by the control READY. So is one whose step another batch runs.
    3. Only steps of one shape run together, that of the step that has waited longest; the others are rows without a
       request, this time. (Triton takes the lowest slot's, which can starve the others.)
    4. A batch goes as soon as its instance can take one; if both `max_queue_delay_microseconds` and
       `minimum_slot_utilization` are set, only when that share of the slots has a step, or the step that has waited
       longest is as old as the delay, or the latest step has another shape (as in `DynamicBatchingPolicy`).
    """

    def __init__(self, config: StrategyDirect, *, max_batch_size: int) -> None:
        self._slot_count = max(max_batch_size, 1)
        has_delay = config.max_queue_delay_microseconds > 0 and config.minimum_slot_utilization > 0
        self._delay = config.max_queue_delay_microseconds / 1e6 if has_delay else 0.0
        # The share is a 32-bit number: 0.3 of 10 slots must be 3 of them.
        self._least_steps = math.ceil(config.minimum_slot_utilization * self._slot_count - 1e-5)
        self._ready: dict[Instance, dict[int, Step]] = {}
        self._wake_at: dict[Instance, float] = {}

    @property
    def slots_per_instance(self) -> int:
        return self._slot_count

    def add_instance(self, instance: Instance) -> None:
        self._ready[instance] = {}

    def remove_instance(self, instance: Instance) -> None:
        del self._ready[instance]
        self._wake_at.pop(instance, None)

    def offer(self, step: Step) -> None:
        slot = step.sequence.slot
        assert slot is not None
        self._ready[slot.instance][slot.index] = step

    def withdraw(self, step: Step) -> None:
        slot = step.sequence.slot
        assert slot is not None
        del self._ready[slot.instance][slot.index]

    def next_batch(self, instance: Instance, now: float) -> tuple[Rows, FlushReason | None] | None:
        ready = self._ready[instance]
        self._wake_at.pop(instance, None)
        if not ready:
            return None
        oldest = min(ready.values(), key=_arrival)
        key = oldest.item.shape_key
        chosen = {index: step for index, step in ready.items() if step.item.shape_key == key}
        latest = next(reversed(ready.values()))
        is_passed = latest.item.shape_key != key
        if len(chosen) < self._least_steps and not is_passed and now < oldest.item.arrival + self._delay:
            self._wake_at[instance] = oldest.item.arrival + self._delay
            return None
        for index in chosen:
            del ready[index]
        return [chosen.get(index) for index in range(max(chosen) + 1)], None

    def wake_at(self, instance: Instance) -> float:
        return self._wake_at.get(instance, math.inf)


class OldestStrategy:
    """Slots are for candidates: up to `max_candidate_sequences` sequences on an instance feed a dynamic batcher.

    1. The next step of each candidate joins the instance's queue as soon as nothing of its sequence runs. From there
       the rules of `DynamicBatchingPolicy` hold, with this strategy's `preferred_batch_size` and
       `max_queue_delay_microseconds`; so a batch has at most one step of a sequence, at any row.
    2. With 0 candidate sequences there are as many as a batch has rows.
    """

    def __init__(self, config: StrategyOldest, *, max_batch_size: int) -> None:
        self._slot_count = config.max_candidate_sequences if config.max_candidate_sequences > 0 else max_batch_size or 1
        batching = ModelDynamicBatching(
            preferred_batch_size=config.preferred_batch_size,
            max_queue_delay_microseconds=config.max_queue_delay_microseconds,
        )
        self._new_queue: Callable[[], DynamicBatchingPolicy] = lambda: DynamicBatchingPolicy(
            batching, max_batch_size=max_batch_size
        )
        self._queues: dict[Instance, DynamicBatchingPolicy] = {}
        self._offered: dict[QueuedRequest, Step] = {}

    @property
    def slots_per_instance(self) -> int:
        return self._slot_count

    def add_instance(self, instance: Instance) -> None:
        self._queues[instance] = self._new_queue()

    def remove_instance(self, instance: Instance) -> None:
        for item in self._queues.pop(instance).clear():
            del self._offered[item]

    def offer(self, step: Step) -> None:
        self._offered[step.item] = step
        self._queue_of(step).add(step.item)

    def withdraw(self, step: Step) -> None:
        del self._offered[step.item]
        self._queue_of(step).abandon(step.item)

    def next_batch(self, instance: Instance, now: float) -> tuple[Rows, FlushReason | None] | None:
        batch = self._queues[instance].next_batch(now)
        if batch is None:
            return None
        return [self._offered.pop(item) for item in batch.items], batch.reason

    def wake_at(self, instance: Instance) -> float:
        return self._queues[instance].wake_at(is_idle=True)

    def _queue_of(self, step: Step) -> DynamicBatchingPolicy:
        slot = step.sequence.slot
        assert slot is not None
        return self._queues[slot.instance]


def _arrival(step: Step) -> float:
    return step.item.arrival
