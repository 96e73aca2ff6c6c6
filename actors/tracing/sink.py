"""Trace sink: the interface of the trace exporters (`actors.tracing.files`, `actors.tracing.export`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from actors.tracing.record import RequestTrace


class CannotTrace(Exception):
    """Tracing cannot start as configured. The text says why and what to change."""


class TraceSink(Protocol):
    """Called in threads, as it may block; writes do not overlap."""

    def write(self, traces: Sequence[RequestTrace]) -> None:
        """Write these traces, oldest first. Raises OSError if they are lost."""

    def close(self) -> None:
        """Flush what is left; may take long."""

    def abort(self) -> None:
        """Make a `close` in progress return; quick."""
