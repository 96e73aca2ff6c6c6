"""Access record: what is measured of one request for its line in the access log.

A request carries it as its trace, so that the stamps by which traces are made measure it, too; a trace of the request's
own gets them from here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from protocol.server_settings import Trace, TracedTensor

# What actors tell by `Trace.annotate`, beside what is OpenTelemetry's.
INSTANCE = "trioton.instance"
BATCH_SIZE = "trioton.batch_size"
CACHED = "trioton.cached"
QUEUE_NS = "trioton.queue_ns"
COMPUTE_NS = "trioton.compute_ns"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"

_QUEUE_START, _COMPUTE_START, _COMPUTE_END = "QUEUE_START", "COMPUTE_START", "COMPUTE_END"


class AccessRecord:
    """Implements `protocol.server_settings.Trace` in front of `trace`, the request's own if it has one.

    Attributes:
        is_chosen: its line is written however the request ends.
        is_written: the request has ended, and its line was written or left out.
        started_ns: when it arrived, in nanoseconds of `time.monotonic_ns`.
        version: that which has served it.
        facts: what was told of it, by the names above.
        queue_ns, compute_ns: None where it has come to none.
    """

    __slots__ = (
        *("_last", "compute_ns", "facts", "is_chosen", "is_written", "queue_ns", "started_ns", "trace", "version"),
    )

    def __init__(self, *, is_chosen: bool = False) -> None:
        self.is_chosen = is_chosen
        self.is_written = False
        self.started_ns = time.monotonic_ns()
        self.trace: Trace | None = None
        self.version = ""
        self.facts: dict[str, object] = {}
        self.queue_ns: int | None = None
        self.compute_ns: int | None = None
        self._last = 0

    def stamp(self, activity: str, ns: int | None = None) -> None:
        if activity == _QUEUE_START:
            self._last = time.monotonic_ns() if ns is None else ns
            self.queue_ns = self.queue_ns or 0
        elif self._last and activity in (_COMPUTE_START, _COMPUTE_END):
            now = time.monotonic_ns() if ns is None else ns
            if activity == _COMPUTE_START:
                self.queue_ns = (self.queue_ns or 0) + now - self._last
            else:
                self.compute_ns = (self.compute_ns or 0) + now - self._last
            self._last = now
        if self.trace is not None:
            self.trace.stamp(activity, ns)

    def identify(self, model_version: int, request_id: str) -> None:
        self.version = str(model_version)
        if self.trace is not None:
            self.trace.identify(model_version, request_id)

    def record_tensors(self, activity: str, tensors: Sequence[TracedTensor]) -> None:
        if self.trace is not None:
            self.trace.record_tensors(activity, tensors)

    def annotate(self, attributes: Mapping[str, str | int | float | Sequence[str]]) -> None:
        self.facts.update(attributes)
        if self.trace is not None:
            self.trace.annotate(attributes)

    def child(self, model: str) -> Trace | None:
        return None if self.trace is None else self.trace.child(model)

    def context(self) -> str | None:
        return None if self.trace is None else self.trace.context()

    def end(self) -> None:
        """Of the trace; the line is written by the edge."""
        if self.trace is not None:
            self.trace.end()
