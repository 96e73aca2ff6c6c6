"""Callback failures: exceptions that escaped from a callback, logged with their traceback and counted for the metrics.

Callers of callbacks (the poller, the replies of an edge, a scheduler) catch what is raised, end what that callback
served, record it here, and go on with everything else.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

logger = logging.getLogger("trioton.failures")

# One traceback for each place in so many seconds: a defect that every request meets would fill the disk.
_QUIET_SECONDS = 1.0


class CallbackFailures:
    """The failures of one server. `place` is where the callback was called from, a label value in `docs/metrics.md`."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._logged_at: dict[str, float] = {}
        self._unlogged: Counter[str] = Counter()

    def note(self, place: str, error: BaseException, what: str) -> None:
        """`what` is a sentence for the operator: what failed, and what is lost by it."""
        self._counts[place] += 1
        now = time.monotonic()
        if now - self._logged_at.get(place, -_QUIET_SECONDS) < _QUIET_SECONDS:
            self._unlogged[place] += 1
            return
        self._logged_at[place] = now
        unlogged = self._unlogged.pop(place, 0)
        more = f" ({unlogged} more like it since the last one that was logged)" if unlogged else ""
        logger.error("%s: a defect of the server%s", what, more, exc_info=error)

    def add(self, place: str, count: int) -> None:
        """Count failures that were noted elsewhere."""
        self._counts[place] += count

    @contextmanager
    def noted(self, place: str, what: str) -> Iterator[None]:
        """A context manager that records and suppresses what is raised within."""
        try:
            yield
        except Exception as error:
            self.note(place, error, what)

    def counts(self) -> Mapping[str, int]:
        """Failures by place, only of places that have any."""
        return dict(self._counts)
