"""Interface of batching policies, which say what goes into the next batch and when; and the default scheduler's.

A policy is plain and synchronous: it takes `now` and imports no Trio. Owned by the scheduler, which asks it for one
batch per idle instance (`next_batch`), for requests that have waited too long (`take_expired`), and when to ask again
(`wake_at`). The dynamic batcher's is in `actors.scheduling.batching.dynamic`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import msgspec

from actors.mail.messages import QueuedRequest
from actors.metrics.statistics import FlushReason
from actors.scheduling.batching.line import BatchLine, PlainLine
from actors.scheduling.batching.turns import Turns


class Batch(msgspec.Struct, frozen=True):
    """The requests of one execution. `reason` is None where nothing was batched."""

    items: Sequence[QueuedRequest]
    reason: FlushReason | None = None


class BatchingPolicy(Protocol):
    """The queue of one model version, with the rules by which batches are formed from it."""

    # Whether requests can wait too long.
    can_expire: bool

    @property
    def waiting(self) -> int:
        """How many requests wait."""

    def add(self, item: QueuedRequest) -> bool:
        """Queue a request; False if the queue is full."""

    def abandon(self, item: QueuedRequest) -> None:
        """Remove a queued request whose caller has gone; one that is not queued (any more) is ignored."""

    def next_batch(self, now: float, *, is_ahead: bool = False) -> Batch | None:
        """The batch to run at once if there is an idle instance, else None. With `is_ahead` for an instance that is
        still busy: then only a batch that would not gain by waiting."""

    def take_expired(self, now: float) -> Sequence[QueuedRequest]:
        """Take out those whose time in the queue is over, to be refused."""

    def wake_at(self, *, is_idle: bool) -> float:
        """When `take_expired` or, if an instance is idle, `next_batch` may answer differently though nothing else has
        happened; `math.inf` for never."""

    def settle(self, batch: Sequence[QueuedRequest], seconds_per_row: float) -> None:
        """A batch with requests of keys has run, and has computed for so long."""

    def clear(self) -> list[QueuedRequest]:
        """Take out everything that waits."""

    def renewed(self) -> BatchingPolicy:
        """An empty one with the same rules."""


class BatchTuning(Protocol):
    """Learns from how batches went, and sets what a policy forms next."""

    def completed(self, batch: Sequence[QueuedRequest], *, started: float, now: float) -> None:
        """A batch that an instance took at `started` has ended."""

    def resize(self, instances: int) -> None:
        """Note the new number of instances."""


class DirectPolicy:
    """Triton's default scheduler: one request per execution, first come, first served, no queue limit. Where keys have
    weights, those that wait take turns."""

    can_expire = False

    def __init__(self) -> None:
        self._line: BatchLine = PlainLine()
        self._plain: PlainLine | None = self._line  # the line, where keys take no turns: its methods would cost calls
        self._turns = Turns()
        self.waiting = 0

    def add(self, item: QueuedRequest) -> bool:
        if item.request.charge is not None and self._turns.change_with(item, self.waiting):
            self._line = self._turns.changed(self._line, PlainLine)
            self._plain = self._line if isinstance(self._line, PlainLine) else None
        if self._plain is not None:
            self._plain[item] = None
        else:
            self._line.add(item, 0)
        self.waiting += 1
        return True

    def abandon(self, item: QueuedRequest) -> None:
        if self._line.discard(item):
            self.waiting -= 1

    def next_batch(self, now: float, *, is_ahead: bool = False) -> Batch | None:
        if not self.waiting:
            return None
        self.waiting -= 1
        if self._plain is not None:
            for item in self._plain:
                del self._plain[item]
                return Batch((item,))
        return Batch(self._line.take(1))

    def settle(self, batch: Sequence[QueuedRequest], seconds_per_row: float) -> None:
        self._turns.settle(batch, seconds_per_row)

    def take_expired(self, now: float) -> Sequence[QueuedRequest]:
        return ()

    def wake_at(self, *, is_idle: bool) -> float:
        return math.inf

    def clear(self) -> list[QueuedRequest]:
        left = sorted((item for _, item in self._line.ranked()), key=lambda item: item.arrival)
        self._line = self._plain = PlainLine()
        self._turns = Turns()
        self.waiting = 0
        return left

    def renewed(self) -> DirectPolicy:
        return DirectPolicy()
