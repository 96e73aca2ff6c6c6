"""Where finished traces go to: what `actors.tracing.files` and `actors.tracing.export` have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from actors.tracing.record import RequestTrace


class CannotTrace(Exception):
    """Tracing cannot start as it was asked for. The text says why and what to change."""


class TraceSink(Protocol):
    """Called in threads, as it may block; writes do not overlap."""

    def write(self, traces: Sequence[RequestTrace]) -> None:
        """Take these, oldest first. Raises OSError if they are lost."""

    def close(self) -> None:
        """Send what is left; may take long."""

    def abort(self) -> None:
        """Make a `close` under way come to its end; quick."""
