"""Turns of keys in the queue of one model: kept only while requests come from keys that have weights.

Consulted by the batching policies. Plain and synchronous, as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actors.mail.messages import QueuedRequest
from actors.scheduling.batching.line import BatchLine, FairLine, holder_of, wants_turns
from protocol.quotas.fair_queue import FairShares


class Turns:
    """Attributes:
    shares: what each key has used; None where keys take no turns.
    """

    __slots__ = ("shares",)

    def __init__(self) -> None:
        self.shares: FairShares | None = None

    def change_with(self, item: QueuedRequest, waiting: int) -> bool:
        """Whether the lines are to be others from now on, where this request comes next, and so many wait. Turns begin
        with the first request of a key that has a weight; when no key has one any more they end as soon as nothing
        waits."""
        if wants_turns(item) == (self.shares is not None):
            return False
        if self.shares is None:
            self.shares = FairShares()
        elif waiting:
            return False
        else:
            self.shares = None
        return True

    def changed(self, line: BatchLine, kind: Callable[[], BatchLine]) -> BatchLine:
        """A new line in place of another, with what waits there; of this kind where keys take no turns."""
        new = kind() if self.shares is None else FairLine(self.shares)
        for rank, item in line.ranked():
            new.add(item, rank)
        return new

    def settle(self, batch: Sequence[QueuedRequest], seconds_per_row: float) -> None:
        """Charge what a batch has computed, in place of what was expected when it was taken."""
        shares = self.shares
        if shares is not None:
            for item in batch:
                shares.charge(holder_of(item), seconds_per_row * item.batch_size - item.expected_seconds)
            shares.learn(seconds_per_row)
