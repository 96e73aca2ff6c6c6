"""Feed: how many items of jobs a model is given beside its live requests, and when an item is tried again. Pure.

Of models of known capacity `joining` decides about live requests instead, and here there are none.

1. Without live requests a model has what it runs at the same time, and a quarter more, so that it never waits.
2. While there are live requests it has no more in all than it runs at the same time: items of jobs fill the batches and
   instances that are idle, and none waits in the queue before a live request. While live requests wait it gets none.
3. A model that was not available gets nothing for a while, twice as long each time.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.jobs.execution import ModelLoad

FIRST_RETRY_SECONDS = 0.5
MOST_RETRY_SECONDS = 30.0


@dataclass(slots=True)
class Lane:
    """One model's.

    Attributes:
        most: items that it has at most.
        in_flight: items that it has.
        not_before: when it may have one again.
    """

    most: int
    in_flight: int = 0
    not_before: float = 0.0
    _failures: int = 0

    def wanted(self, load: ModelLoad) -> int:
        """How many items it should have without live requests."""
        if not load.capacity:
            return self.most
        return min(self.most, load.capacity + max(load.capacity // 4, 1))

    def room(self, load: ModelLoad, now: float) -> int:
        """How many more it may have now."""
        if now < self.not_before:
            return 0
        live = load.in_flight - self.in_flight
        limit = self.wanted(load) if live <= 0 else min(self.most, (load.capacity or self.most) - live)
        return max(limit - self.in_flight, 0)

    def ended(self, *, was_available: bool, now: float) -> None:
        """An item has left it."""
        self.in_flight -= 1
        if was_available:
            self._failures = 0
        elif now >= self.not_before:  # the others that it had at the same time tell nothing new
            self.not_before = now + retry_seconds(self._failures)
            self._failures += 1


def retry_seconds(failures: int) -> float:
    """How long to wait after so many failures before and this one."""
    doubled: float = FIRST_RETRY_SECONDS * 2 ** min(failures, 16)
    return min(doubled, MOST_RETRY_SECONDS)
