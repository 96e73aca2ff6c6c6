"""Cuts off a peer that sends more of something than any decent one does. A plain policy that takes `now`."""

from __future__ import annotations

import math


class Rate:
    """Counts events of one connection, of which there may be `limit` in a second."""

    __slots__ = ("_count", "_limit", "_since")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._since = -math.inf

    def exceeds(self, now: float) -> bool:
        """Count one; whether there are too many."""
        if now - self._since > 1:
            self._count, self._since = 0, now
        self._count += 1
        return self._count > self._limit
