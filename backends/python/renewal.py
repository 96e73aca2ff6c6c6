"""Renewal policy: when an instance's worker is replaced (RESTART_AFTER_REQUESTS, RESTART_AFTER_MEMORY_MIB)."""

from __future__ import annotations

import trio

from backends.python.loaded_model import LoadedModel
from backends.python.settings import PythonSettings

# Memory is read no more often.
_LOOK_SECONDS = 0.25


class Renewal:
    """Counts requests and memory; `wait_due` is for one task."""

    def __init__(self, settings: PythonSettings) -> None:
        self._most_requests = settings.restart_after_requests
        self._most_memory = settings.restart_after_memory
        self._looked = -_LOOK_SECONDS
        self._due = trio.Event()

    @property
    def is_wanted(self) -> bool:
        return bool(self._most_requests or self._most_memory)

    def note_batch(self, loaded: LoadedModel, requests: int) -> None:
        """A batch of so many requests has run on it."""
        loaded.requests += requests
        if self.is_wanted and not self._due.is_set() and self._is_due(loaded):
            self._due.set()

    async def wait_due(self) -> None:
        await self._due.wait()

    def begin_anew(self) -> None:
        """Start counting anew."""
        self._due = trio.Event()

    def _is_due(self, loaded: LoadedModel) -> bool:
        if self._most_requests and loaded.requests >= self._most_requests:
            return True
        if not self._most_memory or trio.current_time() < self._looked + _LOOK_SECONDS:
            return False
        self._looked = trio.current_time()
        return (loaded.link.resident_bytes() or 0) > self._most_memory
