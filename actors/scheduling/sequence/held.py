"""A sequence policy that holds all requests until a number of them wait: lets clients test a scheduler.

As `actors.scheduling.batching.held`; the variables are TRITONSERVER_DELAY_SCHEDULER for requests of sequences that have
a slot, and TRITONSERVER_BACKLOG_DELAY_SCHEDULER for those that have none yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from actors.mail.messages import QueuedRequest, ShapeKey
from actors.metrics.statistics import FlushReason
from actors.scheduling.batching.held import SchedulerHold
from actors.scheduling.sequence.policy import SequencePolicy
from actors.scheduling.sequence.records import Instance, Step
from actors.scheduling.sequence.strategy import OldestStrategy, Rows
from repository.model_config import ModelConfig


class HeldSequencePolicy(SequencePolicy):
    """A `SequencePolicy` whose first batch is formed when both counts are reached. With the strategy `oldest` those
    count that are candidates for a batch, of which each sequence has one."""

    def __init__(
        self,
        hold: SchedulerHold,
        config: ModelConfig,
        *,
        key_of_states: Callable[[Step], ShapeKey] = lambda step: None,
        on_offered: Callable[[QueuedRequest], None] | None = None,
    ) -> None:
        super().__init__(config, key_of_states=key_of_states, on_offered=on_offered)
        self._hold: SchedulerHold | None = hold

    def next_batch(self, instance: Instance, now: float) -> tuple[Rows, FlushReason | None] | None:
        return None if self._is_held() else super().next_batch(instance, now)

    def wake_at(self, idle: Iterable[Instance]) -> float:
        return super().wake_at(() if self._is_held() else idle)

    def _is_held(self) -> bool:
        hold = self._hold
        if hold is None:
            return False
        backlog = sum(len(sequence.waiting) for sequence in self._backlog)
        placed = self.waiting - backlog
        if isinstance(self._strategy, OldestStrategy):
            slots = [slot for slots in self._slots.values() for slot in slots]
            placed = sum(1 for slot in slots if slot.sequence is not None and slot.sequence.is_offered)
        if placed >= hold.requests and backlog >= hold.backlog:
            self._hold = None
        return self._hold is not None
