"""A count and a cumulative duration: the element of every row of the statistics."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.core import StatisticDuration

NANOSECONDS = 1_000_000_000


@dataclass(slots=True)
class Sum:
    """Durations are kept in nanoseconds."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        self.count += count
        self.ns += ns

    def add_seconds(self, seconds: float) -> None:
        self.count += 1
        self.ns += int(seconds * NANOSECONDS)

    def frozen(self) -> StatisticDuration:
        return StatisticDuration(self.count, self.ns)
