"""How long to wait before a model instance that died is started again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RestartBackoff:
    """Doubles from `first_seconds` to `most_seconds`; a life of `healthy_seconds` starts it over."""

    first_seconds: float = 0.5
    most_seconds: float = 30.0
    healthy_seconds: float = 60.0
    _next: float = 0.0

    def delay(self, *, lived_seconds: float) -> float:
        """Seconds to wait after a life of `lived_seconds`."""
        if lived_seconds >= self.healthy_seconds:
            self._next = 0.0
        delay = self._next or self.first_seconds
        self._next = min(delay * 2, self.most_seconds)
        return delay
