"""W3C Trace Context: the trace and span ids of one request, from and to `traceparent` and `tracestate`.

Pure. Ids are decided before the spans are made, so that a model can make child spans of its own.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class SpanContext:
    """The trace, and the span of the request's computation; `trace_state` is the caller's."""

    trace_id: int
    span_id: int
    trace_state: str = ""

    @property
    def headers(self) -> tuple[str, str]:
        """`traceparent` and `tracestate` for children of the compute span."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-01", self.trace_state

    @property
    def text(self) -> str:
        """The same as JSON text."""
        traceparent, tracestate = self.headers
        found = {"traceparent": traceparent}
        if tracestate:
            found["tracestate"] = tracestate
        return json.dumps(found)


def new_span_context(traceparent: str, tracestate: str) -> SpanContext:
    """A new context, in the caller's trace if the caller gave a valid one."""
    found = _TRACEPARENT.fullmatch(traceparent)
    caller = 0 if found is None or not int(found.group(2), 16) else int(found.group(1), 16)
    return SpanContext(caller or _random(16), _random(8), tracestate if caller else "")


def _random(size: int) -> int:
    """A random id of so many bytes that is not 0, which would be invalid."""
    return int.from_bytes(secrets.token_bytes(size)) or 1
