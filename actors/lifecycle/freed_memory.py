"""Returns the memory of unloaded models to the system, and limits what that costs everyone else.

Owned by the model life cycle. A full collection holds the GIL for some 50 ms, and each request with it.
"""

from __future__ import annotations

import time

import trio

from backends.free_memory import return_free_memory
from protocol.failures import CallbackFailures

# Collections take at most one part in so many of the time, and have at least so much time between them.
LEAST_SHARE = 50
LEAST_PAUSE_SECONDS = 1.0


class FreedMemory:
    """At most one collection is due or in progress; whatever is unloaded before it begins shares it."""

    def __init__(self, nursery: trio.Nursery, failures: CallbackFailures) -> None:
        self._nursery = nursery
        self._failures = failures
        self._is_due = False
        self._is_closed = False
        self._collecting: trio.CancelScope | None = None
        self._earliest = 0.0

    def note_unloaded(self) -> None:
        """A model has been unloaded: collect what it has left, now or when the next collection may be."""
        self._is_due = True
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
                    self._is_due = False
                    seconds = await trio.to_thread.run_sync(_timed_collection, abandon_on_cancel=True)
                    self._earliest = trio.current_time() + max(LEAST_PAUSE_SECONDS, LEAST_SHARE * seconds)
        except Exception as error:
            self._failures.note("background", error, "the memory of unloaded models could not be returned")
        finally:
            self._collecting = None


def _timed_collection() -> float:
    began = time.perf_counter()
    return_free_memory()
    return time.perf_counter() - began
