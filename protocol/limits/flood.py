"""Flood guard: a token bucket against floods of cheap frames (PING, SETTINGS, RST_STREAM) on one connection.

A policy without I/O that takes `now`.
"""

from __future__ import annotations


class FloodGuard:
    """Allows `per_second` events per second, in bursts of as many."""

    __slots__ = ("_left", "_per_second", "_since")

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._left = float(per_second)
        self._since = 0.0

    def passes(self, now: float) -> bool:
        """Count one event at `now`, in seconds of a monotonic clock; whether it is allowed."""
        self._left = min(self._per_second, self._left + (now - self._since) * self._per_second)
        self._since = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
