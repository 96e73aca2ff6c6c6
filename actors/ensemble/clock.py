"""Step clock: measures the time of an ensemble's steps by the trace stamps that each request's trace receives.

A step's request carries a `StepClock` as its trace, so the models on its way need not know of ensembles. If the
ensemble's request is traced, the clock forwards every stamp to the step's own trace.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from actors.tracing.stamps import COMPUTE_END, COMPUTE_INPUT_END, COMPUTE_OUTPUT_START, COMPUTE_START, QUEUE_START
from backends.interface import BatchTiming
from protocol.server_settings import Trace, TracedTensor


@dataclass(slots=True)
class TimeSpent:
    """Durations in nanoseconds, summed over steps, also over those that run concurrently."""

    queue_ns: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0

    @property
    def timing(self) -> BatchTiming:
        """The computation's part of it."""
        return BatchTiming(self.compute_input_ns, self.compute_infer_ns, self.compute_output_ns)

    def add(self, other: TimeSpent) -> None:
        self.queue_ns += other.queue_ns
        self.compute_input_ns += other.compute_input_ns
        self.compute_infer_ns += other.compute_infer_ns
        self.compute_output_ns += other.compute_output_ns


class StepClock:
    """Implements `protocol.server_settings.Trace` for one step's request."""

    __slots__ = ("_last", "_trace", "spent")

    def __init__(self, trace: Trace | None = None) -> None:
        self.spent = TimeSpent()
        self._last = 0
        self._trace = trace

    def stamp(self, activity: str, ns: int | None = None) -> None:
        now = time.monotonic_ns() if ns is None else ns
        spent = self.spent
        if activity == QUEUE_START:
            self._last = now
        elif not self._last:
            pass  # refused before it was queued
        elif activity == COMPUTE_START:
            spent.queue_ns += now - self._last
            self._last = now
        elif activity == COMPUTE_INPUT_END:
            spent.compute_input_ns += now - self._last
            self._last = now
        elif activity == COMPUTE_OUTPUT_START:
            spent.compute_infer_ns += now - self._last
            self._last = now
        elif activity == COMPUTE_END:
            spent.compute_output_ns += now - self._last
            self._last = now
        if self._trace is not None:
            self._trace.stamp(activity, now)

    def identify(self, model_version: int, request_id: str) -> None:
        if self._trace is not None:
            self._trace.identify(model_version, request_id)

    def record_tensors(self, activity: str, tensors: Sequence[TracedTensor]) -> None:
        if self._trace is not None:
            self._trace.record_tensors(activity, tensors)

    def annotate(self, attributes: Mapping[str, str | int | float | Sequence[str]]) -> None:
        if self._trace is not None:
            self._trace.annotate(attributes)

    def child(self, model: str) -> Trace | None:
        return None if self._trace is None else self._trace.child(model)

    def context(self) -> str | None:
        return None if self._trace is None else self._trace.context()

    def end(self) -> None:
        if self._trace is not None:
            self._trace.end()
