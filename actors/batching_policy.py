"""Which requests go into the next batch, and when: plain synchronous policies that take `now` and import no Trio.

The scheduler actor asks a policy for one batch per idle instance (`next_batch`) and when to ask again (`wake_at`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from actors.messages import QueuedRequest, ShapeKey
from repository.model_config import ModelDynamicBatching


class BatchingPolicy(Protocol):
    """The queue of one model version and the rule by which it is emptied."""

    def add(self, item: QueuedRequest) -> bool:
        """Queue a request; False if the queue is full."""

    def abandon(self, item: QueuedRequest) -> None:
        """Forget a queued request whose caller has gone; one that is not queued (any more) is ignored."""

    def next_batch(self, now: float) -> Sequence[QueuedRequest] | None:
        """The batch to run at once if there is an idle instance, else None."""

    def wake_at(self) -> float:
        """When `next_batch` may answer differently though nothing else has happened; `math.inf` for never."""

    def clear(self) -> list[QueuedRequest]:
        """Take out everything that waits."""

    def __len__(self) -> int:
        """How many requests wait."""


class DirectPolicy:
    """Triton's default scheduler: one request per execution, first come, first served, no queue limit."""

    def __init__(self) -> None:
        self._queue: deque[QueuedRequest] = deque()

    def add(self, item: QueuedRequest) -> bool:
        self._queue.append(item)
        return True

    def abandon(self, item: QueuedRequest) -> None:
        if item in self._queue:
            self._queue.remove(item)

    def next_batch(self, now: float) -> Sequence[QueuedRequest] | None:
        return [self._queue.popleft()] if self._queue else None

    def wake_at(self) -> float:
        return math.inf

    def clear(self) -> list[QueuedRequest]:
        waiting = list(self._queue)
        self._queue.clear()
        return waiting

    def __len__(self) -> int:
        return len(self._queue)


class DynamicBatchingPolicy:
    """The dynamic batcher's rules (Triton: "Batch forming step"), for one priority level.

    1. Requests whose shapes cannot share a batch wait in lines of their own, one per shape. The line whose first
       request is oldest goes first, so no shape starves another. (Triton has one line only and closes a batch at the
       first request that does not fit, so alternating shapes run one by one there.)
    2. Along a line, requests join while the batch size stays within `max_batch_size`. Where the total equals a
       preferred size the point is remembered, the last one counts; where the next request would pass the largest
       preferred size and there is no such point yet, the present one is remembered.
    3. What reaches a remembered point goes at once, exactly up to it, unless its first request is already
       `max_queue_delay_microseconds` old: then all that fits goes.
    4. Without a remembered point, a batch that cannot grow (it is full, or the next request is too large for the room
       that is left) goes at once, and any other when its first request is as old as the delay. A delay of 0 lets
       nothing wait.

    A batch is only formed when an instance is idle, so while all are busy the lines grow and batches with them.
    """

    def __init__(self, config: ModelDynamicBatching, *, max_batch_size: int) -> None:
        self._max_batch_size = max(max_batch_size, 1)
        self._preferred = frozenset(config.preferred_batch_size) or frozenset({self._max_batch_size})
        self._largest_preferred = max(self._preferred)
        self._delay = config.max_queue_delay_microseconds / 1e6
        queue_policy = config.default_queue_policy
        self._max_queue_size = queue_policy.max_queue_size if queue_policy is not None else 0
        # Lines by shape, each in order of arrival and never empty.
        self._lines: dict[ShapeKey, deque[QueuedRequest]] = {}
        self._count = 0
        self._wake_at = math.inf

    def add(self, item: QueuedRequest) -> bool:
        if self._max_queue_size and self._count >= self._max_queue_size:
            return False
        line = self._lines.get(item.shape_key)
        if line is None:
            line = self._lines[item.shape_key] = deque()
        line.append(item)
        self._count += 1
        return True

    def abandon(self, item: QueuedRequest) -> None:
        line = self._lines.get(item.shape_key)
        if line is not None and item in line:
            line.remove(item)
            self._took(item.shape_key, line, 1)

    def next_batch(self, now: float) -> Sequence[QueuedRequest] | None:
        self._wake_at = math.inf
        lines = list(self._lines.items())
        if len(lines) > 1:
            lines.sort(key=lambda entry: entry[1][0].arrival)
        for key, line in lines:
            length = self._ready_length(line, now)
            if length:
                batch = [line.popleft() for _ in range(length)]
                self._took(key, line, length)
                return batch
            self._wake_at = min(self._wake_at, line[0].arrival + self._delay)
        return None

    def wake_at(self) -> float:
        return self._wake_at

    def clear(self) -> list[QueuedRequest]:
        waiting = sorted((item for line in self._lines.values() for item in line), key=lambda item: item.arrival)
        self._lines.clear()
        self._count = 0
        self._wake_at = math.inf
        return waiting

    def __len__(self) -> int:
        return self._count

    def _ready_length(self, line: deque[QueuedRequest], now: float) -> int:
        """How many requests of the line go now; 0 to wait."""
        total = length = preferred_length = 0
        for item in line:
            grown = total + item.batch_size
            if grown > self._max_batch_size:
                break
            if grown > self._largest_preferred and not preferred_length:
                preferred_length = length
            total = grown
            length += 1
            if total in self._preferred:
                preferred_length = length
        can_grow = length == len(line) and total < self._largest_preferred
        is_due = now >= line[0].arrival + self._delay
        if preferred_length and (not is_due or not self._delay):
            return preferred_length
        return length if is_due or not can_grow else 0

    def _took(self, key: ShapeKey, line: deque[QueuedRequest], count: int) -> None:
        self._count -= count
        if not line:
            del self._lines[key]
