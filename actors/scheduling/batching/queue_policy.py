"""Queue policies of a dynamic batcher: priority levels, queue limits and timeouts.

Consulted by `actors.scheduling.batching.policy`; plain and synchronous. Source: Triton's `ModelQueuePolicy`.
"""

from __future__ import annotations

import heapq
import itertools
import math

from actors.mail.messages import QueuedRequest
from protocol.messages import InferenceRequest
from repository.model_config import ModelDynamicBatching, ModelQueuePolicy, TimeoutAction


class QueuePolicies:
    """The levels of one model and their policies. Level 1 is the highest.

    - A request's level is its `priority`; where that is 0 or above `priority_levels`, `default_priority_level`.
      Without levels all requests are of level 1.
    - A level without a policy of its own has `default_queue_policy`.
    - A request may wait for `default_timeout_microseconds`; with `allow_timeout_override` for its own timeout, if that
      is smaller. A default of 0 means no timeout, whatever the request says.
    """

    def __init__(self, config: ModelDynamicBatching) -> None:
        self.levels = config.priority_levels
        self._default_level = config.default_priority_level
        self._default = config.default_queue_policy or ModelQueuePolicy()
        self._own = config.priority_queue_policy if self.levels else {}
        policies = [self._default, *self._own.values()]
        self.has_timeouts = any(policy.default_timeout_microseconds for policy in policies)
        self.has_limits = any(policy.max_queue_size for policy in policies)

    def level_of(self, request: InferenceRequest) -> int:
        if not self.levels:
            return 1
        return request.priority if 1 <= request.priority <= self.levels else self._default_level

    def max_queue_size(self, level: int) -> int:
        """How many requests may wait at a level; 0 for any number."""
        return self._of(level).max_queue_size

    def is_delayed(self, level: int) -> bool:
        """Whether a request whose time is over goes behind the others of its level, instead of being rejected."""
        return self._of(level).timeout_action is TimeoutAction.DELAY

    def timeout(self, request: InferenceRequest, level: int) -> float:
        """How long a request may wait, in seconds; `math.inf` for ever."""
        policy = self._of(level)
        microseconds = policy.default_timeout_microseconds
        if not microseconds:
            return math.inf
        if policy.allow_timeout_override and 0 < request.timeout_microseconds < microseconds:
            microseconds = request.timeout_microseconds
        return microseconds / 1e6

    def _of(self, level: int) -> ModelQueuePolicy:
        return self._own.get(level, self._default)


class Deadlines:
    """Until when each request may wait, the nearest first. Adding and taking out cost the logarithm of the number."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._heap: list[tuple[float, int]] = []
        # The heap keeps the numbers of requests that are gone until they come up, but not the requests.
        self._waiting: dict[int, QueuedRequest] = {}
        self._number_of: dict[QueuedRequest, int] = {}

    def set(self, item: QueuedRequest, at: float) -> None:
        number = next(self._numbers)
        heapq.heappush(self._heap, (at, number))
        self._waiting[number] = item
        self._number_of[item] = number

    def discard(self, item: QueuedRequest) -> None:
        number = self._number_of.pop(item, None)
        if number is None:
            return
        del self._waiting[number]
        if len(self._heap) > 2 * len(self._waiting) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in self._waiting]
            heapq.heapify(self._heap)

    def next_at(self) -> float:
        """When the first of them is over; `math.inf` if there is none."""
        while self._heap and self._heap[0][1] not in self._waiting:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def take_due(self, now: float) -> list[QueuedRequest]:
        """Those whose time is over, the earliest first; they have no deadline any more."""
        due = []
        while self.next_at() <= now:
            item = self._waiting.pop(heapq.heappop(self._heap)[1])
            del self._number_of[item]
            due.append(item)
        return due

    def clear(self) -> None:
        self._heap.clear()
        self._waiting.clear()
        self._number_of.clear()
