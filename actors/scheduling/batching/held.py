"""A batching policy that holds all requests until a number of them wait: lets clients test a scheduler.

Put by `actors.scheduling.batching.batcher` in front of the real policy, only with Triton's debugging variable
TRITONSERVER_DELAY_SCHEDULER. Plain and synchronous, as all policies (`actors.scheduling.batching.policy`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actors.mail.messages import QueuedRequest
from actors.scheduling.batching.policy import Batch, BatchingPolicy


@dataclass(frozen=True, slots=True)
class SchedulerHold:
    """Until when a new scheduler holds its requests: `requests` must wait, and `backlog` more of sequences that have no
    slot yet. Zero for not at all."""

    requests: int = 0
    backlog: int = 0


NO_HOLD = SchedulerHold()


class HeldPolicy:
    """Another policy, whose first batch is formed when `count` requests wait; from then on it is as if there were no
    hold."""

    def __init__(self, policy: BatchingPolicy, count: int) -> None:
        self._policy = policy
        self._count = count
        self.can_expire = policy.can_expire

    @property
    def waiting(self) -> int:
        return self._policy.waiting

    def add(self, item: QueuedRequest) -> bool:
        return self._policy.add(item)

    def abandon(self, item: QueuedRequest) -> None:
        self._policy.abandon(item)

    def next_batch(self, now: float, *, is_ahead: bool = False) -> Batch | None:
        return None if self._is_held() else self._policy.next_batch(now, is_ahead=is_ahead)

    def take_expired(self, now: float) -> Sequence[QueuedRequest]:
        return self._policy.take_expired(now)

    def wake_at(self, *, is_idle: bool) -> float:
        return self._policy.wake_at(is_idle=is_idle and not self._is_held())

    def settle(self, batch: Sequence[QueuedRequest], seconds_per_row: float) -> None:
        self._policy.settle(batch, seconds_per_row)

    def clear(self) -> list[QueuedRequest]:
        return self._policy.clear()

    def renewed(self) -> HeldPolicy:
        return HeldPolicy(self._policy.renewed(), self._count)

    def _is_held(self) -> bool:
        if self._policy.waiting >= self._count:
            self._count = 0
        return self._count > 0
