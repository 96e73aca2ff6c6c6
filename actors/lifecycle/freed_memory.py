"""Returns the memory of unloaded models to the system, and limits what that costs everyone else.

Owned by the model life cycle. A full collection holds the GIL, and each request with it: for some ten milliseconds,
and for some hundred where it has to look at what was frozen, which is all that the process has imported. So it does
that only where a model goes that was loaded before the last freeze.
"""

from __future__ import annotations

import time

import trio

from backends.free_memory import collects_less, return_free_memory
from protocol.failures import CallbackFailures

# Collections take at most one part in so many of the time, and have at least so much time between them.
LEAST_SHARE = 200
LEAST_PAUSE_SECONDS = 1.0


class FreedMemory:
    """At most one collection is due or in progress; whatever is unloaded before it begins shares it."""

    def __init__(self, nursery: trio.Nursery, failures: CallbackFailures) -> None:
        self._nursery = nursery
        self._failures = failures
        self._is_due = False
        # Whether something goes that was frozen, and how often all was frozen here.
        self._has_frozen = False
        self._freezes = 0
        self._is_closed = False
        self._collecting: trio.CancelScope | None = None
        self._earliest = 0.0

    def age(self) -> int:
        """That of what is loaded from now on, until it is frozen."""
        return self._freezes if collects_less() else -1

    def note_unloaded(self, age: int) -> None:
        """A model of that age has been unloaded: collect what it has left, now or when the next collection may be."""
        self._is_due = True
        self._has_frozen |= age < self._freezes
        if self._collecting is None and not self._is_closed:
            self._collecting = trio.CancelScope()
            self._nursery.start_soon(self._collect, self._collecting)

    def close(self) -> None:
        """The server ends: begin no more collections, for the process's end frees all."""
        self._is_closed = True
        if self._collecting is not None:
            self._collecting.cancel()

    async def _collect(self, scope: trio.CancelScope) -> None:
        try:
            with scope:
                while self._is_due:
                    await trio.sleep_until(self._earliest)
                    has_frozen, self._is_due, self._has_frozen = self._has_frozen, False, False
                    self._freezes += has_frozen
                    seconds = await trio.to_thread.run_sync(_timed_collection, has_frozen, abandon_on_cancel=True)
                    self._earliest = trio.current_time() + max(LEAST_PAUSE_SECONDS, LEAST_SHARE * seconds)
        except Exception as error:
            self._failures.note("background", error, "the memory of unloaded models could not be returned")
        finally:
            self._collecting = None


def _timed_collection(has_frozen: bool) -> float:
    began = time.perf_counter()
    return_free_memory(has_frozen)
    return time.perf_counter() - began
