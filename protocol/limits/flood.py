"""How much of what costs a client nothing a connection puts up with: a policy, free of I/O, that takes `now`."""

from __future__ import annotations


class FloodGuard:
    """Lets `per_second` events pass in a second, all of them at once if they like."""

    __slots__ = ("_left", "_per_second", "_since")

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._left = float(per_second)
        self._since = 0.0

    def passes(self, now: float) -> bool:
        """Count one event at `now`, in seconds of a clock that never goes back."""
        self._left = min(self._per_second, self._left + (now - self._since) * self._per_second)
        self._since = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
