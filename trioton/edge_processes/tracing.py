"""Trace settings of a server with edge processes, which are told whether requests may be traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from protocol.server_settings import Trace, TraceControl, TraceSettings


class ToldTracing:
    """Implements `TraceControl` by another one; `tell` is called after each change, before its caller hears of it."""

    def __init__(self, control: TraceControl, tell: Callable[[], None]) -> None:
        self._control = control
        self._tell = tell

    @property
    def is_sampling(self) -> bool:
        return self._control.is_sampling

    @property
    def follows_context(self) -> bool:
        return self._control.follows_context

    def settings(self, model: str = "") -> TraceSettings:
        return self._control.settings(model)

    def update(self, changes: Mapping[str, Sequence[str] | None], model: str = "") -> TraceSettings:
        try:
            return self._control.update(changes, model)
        finally:
            self._tell()

    def sample(self, model: str, *, traceparent: str = "", tracestate: str = "") -> Trace | None:
        was_sampling = self._control.is_sampling
        trace = self._control.sample(model, traceparent=traceparent, tracestate=tracestate)
        if was_sampling and not self._control.is_sampling:  # that was the last one
            self._tell()
        return trace
