"""Trace sampling: decides which requests are traced under one set of trace settings (rate, count), with its counters.

Pure; every change of settings makes a new one, which begins to count anew. Source: Triton, "Tracing": every rate-th
request of a model is traced until the count is used up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from actors.tracing.settings import TENSORS, TIMESTAMPS, invalid_reason
from protocol.server_settings import TraceSettings

# Models whose requests are counted; with more, all are counted anew.
KEPT_MODELS = 4096


@dataclass(eq=False, slots=True)
class TraceStream:
    """Where the traces of one set of settings are on their way into numbered files. `TraceFiles` alone writes to it."""

    log_frequency: int
    index: int = -1
    written: int = 0


class TraceSampling:
    """`has_timestamps` and `has_tensors` say what its traces hold, `makes_spans` whether they become spans."""

    __slots__ = ("_remaining", "_seen", "_settings", "has_tensors", "has_timestamps", "makes_spans", "stream")

    def __init__(self, settings: TraceSettings) -> None:
        self._settings = settings
        self._remaining = settings.count if not invalid_reason(settings) else 0
        self._seen: dict[str, int] = {}
        self.has_timestamps = TIMESTAMPS in settings.level
        self.has_tensors = TENSORS in settings.level
        self.makes_spans = self.has_timestamps and settings.mode == "opentelemetry"
        self.stream = TraceStream(settings.log_frequency)

    @property
    def settings(self) -> TraceSettings:
        """The settings as they are now: `count` is what is left."""
        settings = self._settings
        return settings if settings.count < 0 or invalid_reason(settings) else replace(settings, count=self._remaining)

    @property
    def is_active(self) -> bool:
        """Whether there is anything left to trace."""
        return self._remaining != 0

    def takes(self, model: str, is_known: Callable[[str], bool], *, is_forced: bool) -> bool:
        """Whether this request is traced. `is_known` is called once for each model, so that made-up names cost no
        memory and use up no count. A forced trace is made out of turn, and does not use up the count."""
        if self._remaining == 0:
            return False
        seen = self._seen.get(model)
        if seen is None:
            if not is_known(model):
                return False
            if len(self._seen) >= KEPT_MODELS:  # most of them have gone
                self._seen.clear()
            seen = 0
        rate = self._settings.rate
        if rate == 0:
            self._seen[model] = 0
            return is_forced
        self._seen[model] = seen = (seen + 1) % rate
        if seen:
            return is_forced
        if self._remaining > 0:
            self._remaining -= 1
        return True
