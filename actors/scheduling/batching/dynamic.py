"""The dynamic batcher's policy: which requests form the next batch, and how long it may wait to grow.

Plain and synchronous, as all policies (`actors.scheduling.batching.policy`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from actors.mail.messages import QueuedRequest, ShapeKey
from actors.metrics.statistics import FlushReason
from actors.scheduling.batching.line import BatchLine, FairLine, PlainLine, RankedLine, rank_of
from actors.scheduling.batching.policy import Batch
from actors.scheduling.batching.queue_policy import Deadlines, QueuePolicies
from actors.scheduling.batching.turns import Turns
from repository.model_config import ModelDynamicBatching


class DynamicBatchingPolicy:
    """The dynamic batcher's rules (Triton: "Batch forming step").

    1. Requests whose shapes cannot share a batch wait in lines of their own, one per shape. (Triton has one line only
       and closes a batch at the first request that does not fit, so alternating shapes run one by one there.) The line
       whose first request is of the highest priority goes first, among equals the one where it is oldest, so no shape
       starves another.
    2. Along a line go the requests of priority level 1, then those of level 2, and so on; within a level those whose
       time is over (timeout action DELAY) come last, the others in order of arrival. A batch may join levels. Where
       keys have weights, those that wait in one level take turns, by the compute time that each has used, and lines of
       one priority go by that, too.
    3. Along a line, requests join while the batch size stays within `max_batch_size`. Where the total equals a
       preferred size the point is remembered, the last one counts; where the next request would pass the largest
       preferred size and there is no such point yet, the present one is remembered.
    4. What reaches a remembered point goes at once, exactly up to it, unless its oldest request is already
       `max_queue_delay_microseconds` old: then all that fits goes.
    5. Without a remembered point, a batch that cannot grow (it is full, or the next request is too large for the room
       that is left) goes at once, and any other when its oldest request is as old as the delay. A delay of 0 lets
       nothing wait. Nor does a batch wait for company that has been waited for in vain: only the line that the latest
       request has joined waits for the delay, the others go at once.
    6. A request whose time in the queue is over is rejected or delayed at that moment, whether instances are idle or
       not. A level that is full refuses what comes.

    A batch is formed when an instance is idle, so while all are busy the lines grow and batches with them. With
    `is_ahead` rules 4 and 5 give what they would send at once if there were a delay that never ends.
    """

    def __init__(self, config: ModelDynamicBatching, *, max_batch_size: int) -> None:
        self._config = config
        self._config_max_batch_size = max_batch_size
        self._max_batch_size = max(max_batch_size, 1)
        self._set_preferred(config.preferred_batch_size or (self._max_batch_size,))
        self._delay = config.max_queue_delay_microseconds / 1e6
        policies = QueuePolicies(config)
        # None where no request needs a look at them.
        self._policies = policies if policies.levels or policies.has_timeouts or policies.has_limits else None
        self._line_kind: type[PlainLine | RankedLine] = PlainLine if self._policies is None else RankedLine
        self._deadlines = Deadlines() if policies.has_timeouts else None
        self.can_expire = policies.has_timeouts
        self._waiting_at: dict[int, int] = {}  # how many wait at each level, if levels or limits are set
        self._lines: dict[ShapeKey, BatchLine] = {}  # none of them empty
        self._turns = Turns()
        self._latest: BatchLine | None = None  # the one that the latest request has joined, there or gone
        self.waiting = 0
        self._form_at = math.inf

    def _set_preferred(self, sizes: Sequence[int]) -> None:
        self._preferred = frozenset(sizes)
        self._largest_preferred = max(sizes)

    def add(self, item: QueuedRequest) -> bool:
        rank = 0
        if item.request.charge is not None and self._turns.change_with(item, self.waiting):
            self._lines = {key: self._turns.changed(line, self._line_kind) for key, line in self._lines.items()}
        if self._policies is not None:
            level = self._policies.level_of(item.request)
            waiting = self._waiting_at.get(level, 0)
            limit = self._policies.max_queue_size(level)
            if limit and waiting >= limit:
                return False
            self._waiting_at[level] = waiting + 1
            rank = rank_of(level)
            if self._deadlines is not None:
                timeout = self._policies.timeout(item.request, level)
                if timeout < math.inf:
                    self._deadlines.set(item, item.arrival + timeout)
        line = self._lines.get(item.shape_key)
        if line is None:
            shares = self._turns.shares
            line = self._lines[item.shape_key] = self._line_kind() if shares is None else FairLine(shares)
        line.add(item, rank)
        self._latest = line
        self.waiting += 1
        return True

    def abandon(self, item: QueuedRequest) -> None:
        line = self._lines.get(item.shape_key)
        if line is not None and line.discard(item):
            self._removed(item.shape_key, line, (item,))

    def next_batch(self, now: float, is_ahead: bool = False) -> Batch | None:
        if not is_ahead:
            self._form_at = math.inf
        lines: Iterable[tuple[ShapeKey, BatchLine]] = self._lines.items()
        if len(self._lines) > 1:
            # Without a delay, whichever is first goes.
            lines = sorted(lines, key=_place) if self._delay or is_ahead else (min(lines, key=_place),)
        for key, line in lines:
            length, reason = self._ready(line, now, is_ahead)
            if reason is not None:
                batch = line.take(length)
                self._removed(key, line, batch)
                return Batch(batch, reason)
            if not is_ahead:
                self._form_at = min(self._form_at, line.oldest() + self._delay)
        return None

    def take_expired(self, now: float) -> Sequence[QueuedRequest]:
        if self._deadlines is None or self._policies is None:
            return ()
        refused = []
        for item in self._deadlines.take_due(now):
            line = self._lines[item.shape_key]
            line.discard(item)
            level = self._policies.level_of(item.request)
            if self._policies.is_delayed(level):
                line.add(item, rank_of(level, is_late=True))
            else:
                self._removed(item.shape_key, line, (item,))
                refused.append(item)
        return refused

    def wake_at(self, *, is_idle: bool) -> float:
        form_at = self._form_at if is_idle else math.inf
        return form_at if self._deadlines is None else min(form_at, self._deadlines.next_at())

    def clear(self) -> list[QueuedRequest]:
        left = sorted((item for line in self._lines.values() for item in line), key=lambda item: item.arrival)
        self._lines.clear()
        self._turns = Turns()
        self._latest = None
        self._waiting_at.clear()
        if self._deadlines is not None:
            self._deadlines.clear()
        self.waiting = 0
        self._form_at = math.inf
        return left

    def settle(self, batch: Sequence[QueuedRequest], seconds_per_row: float) -> None:
        self._turns.settle(batch, seconds_per_row)

    def renewed(self) -> DynamicBatchingPolicy:
        return DynamicBatchingPolicy(self._config, max_batch_size=self._config_max_batch_size)

    def _ready(self, line: BatchLine, now: float, is_ahead: bool) -> tuple[int, FlushReason | None]:
        """How many requests of the line go now, and why; None to wait."""
        total = length = preferred_length = 0
        is_full = False
        for item in line:
            grown = total + item.batch_size
            if grown > self._max_batch_size and length:
                is_full = True
                break
            if grown > self._largest_preferred and not preferred_length:
                preferred_length = length
            total = grown
            length += 1
            if total in self._preferred:
                preferred_length = length
        is_full = is_full or total >= self._max_batch_size
        is_due = not is_ahead and (not self._delay or now >= line.oldest() + self._delay)
        if preferred_length and (not is_due or not self._delay):
            is_whole = is_full and preferred_length == length
            return preferred_length, FlushReason.FULL if is_whole else FlushReason.PREFERRED
        if is_full:
            return length, FlushReason.FULL
        if total >= self._largest_preferred:
            return length, FlushReason.PREFERRED
        if not is_due:
            return (length, FlushReason.SHAPE) if self._is_passed(line, is_ahead=is_ahead) else (0, None)
        if len(self._lines) > 1 and self._has_company_elsewhere(line, self._max_batch_size - total):
            return length, FlushReason.SHAPE
        return length, FlushReason.TIMEOUT if self._delay else FlushReason.IDLE_INSTANCE

    def _is_passed(self, line: BatchLine, *, is_ahead: bool) -> bool:
        """Whether a request that could not join it has come after all of a line's own."""
        return not is_ahead and line is not self._latest

    def _has_company_elsewhere(self, line: BatchLine, room: int) -> bool:
        return any(next(iter(other)).batch_size <= room for other in self._lines.values() if other is not line)

    def _removed(self, key: ShapeKey, line: BatchLine, items: Sequence[QueuedRequest]) -> None:
        """Keep the counts right when requests have left a line."""
        self.waiting -= len(items)
        if not line:
            del self._lines[key]
        if self._policies is None:
            return
        for item in items:
            self._waiting_at[self._policies.level_of(item.request)] -= 1
            if self._deadlines is not None:
                self._deadlines.discard(item)


def _place(entry: tuple[ShapeKey, BatchLine]) -> tuple[int, float, float]:
    return entry[1].place()
