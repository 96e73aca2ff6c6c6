"""Idleness: whether a process has had little to do, so that what would hold a request up may be done now."""

from __future__ import annotations

from dataclasses import dataclass

# Of a core, since it was looked last.
_IDLE_SHARE = 0.05


@dataclass(slots=True)
class Idleness:
    """To be looked at in intervals."""

    _cpu_seconds: float = 0.0
    _looked_at: float = 0.0

    def look(self, *, now: float, cpu_seconds: float) -> bool:
        """With the processor time that the process has used: whether it was idle since the last look."""
        is_idle = cpu_seconds - self._cpu_seconds <= _IDLE_SHARE * (now - self._looked_at)
        self._cpu_seconds, self._looked_at = cpu_seconds, now
        return is_idle
