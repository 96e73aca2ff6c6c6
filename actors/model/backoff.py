"""Restart back-off: how long to wait before a dead model instance is restarted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RestartBackoff:
    """At once after a life with work done, or a long one; else later each time, from `first_seconds` doubled to
    `most_seconds`.

    A token bucket bounds the restarts at once of an instance that keeps dying: `burst` of them, and one more for each
    `refill_seconds`. Where it is empty the restart waits for the next token.
    """

    first_seconds: float = 0.5
    most_seconds: float = 30.0
    healthy_seconds: float = 60.0
    burst: int = 20
    refill_seconds: float = 1.0
    _next: float = 0.0
    _taken: float = 0.0  # tokens
    _counted_at: float = 0.0

    def delay(self, *, now: float, born: float, has_worked: bool) -> float:
        """Seconds to wait after the life that began at `born` and ends `now`."""
        if not has_worked and now - born < self.healthy_seconds:
            return self.grown()
        self._next = 0.0
        self._taken = max(self._taken - (now - self._counted_at) / self.refill_seconds, 0.0) + 1
        self._counted_at = now
        return max(self._taken - self.burst, 0.0) * self.refill_seconds

    def grown(self) -> float:
        """Seconds to wait after a failed attempt."""
        delay = self._next or self.first_seconds
        self._next = min(delay * 2, self.most_seconds)
        return delay
