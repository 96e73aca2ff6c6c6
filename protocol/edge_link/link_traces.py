"""Traces of requests that come from one edge process, where the core samples and writes them."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.edge_link.texts import Attributes, LinkedTrace, StampsText, TraceText, UnsentTraceText
from protocol.messages import InferenceRequest
from protocol.server_settings import Trace, TraceControl


class LinkTraces:
    """Those that are open: the edge has not said yet what has become of them."""

    def __init__(self, control: TraceControl | None) -> None:
        self._control = control
        self._open: dict[int, Trace] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, number: int, request: InferenceRequest, text: TraceText) -> bool:
        """Trace this request, if it is its turn, until `end`; whether it is."""
        trace = self._sampled(request.model_name, text)
        if trace is None:
            return False
        self._open[number] = trace
        if isinstance(request.trace, LinkedTrace):
            request.trace.trace = trace
        else:
            request.trace = trace
        return True

    def _sampled(self, model: str, text: TraceText) -> Trace | None:
        if self._control is None:
            return None
        trace = self._control.sample(model, traceparent=text.traceparent, tracestate=text.tracestate)
        if trace is not None:
            _put(trace, text.stamps, text.attributes)
        return trace

    def end(self, text: StampsText) -> None:
        """The edge is done with a request."""
        trace = self._open.pop(text.number, None)
        if trace is not None:
            _put(trace, text.stamps, text.attributes)
            trace.end()

    def note_unsent(self, text: UnsentTraceText) -> None:
        """A request has ended in the edge alone."""
        trace = self._sampled(text.model, text.trace)
        if trace is not None:
            trace.end()

    def end_all(self) -> None:
        """The edge is gone."""
        traces, self._open = self._open, {}
        for trace in traces.values():
            trace.end()


def _put(trace: Trace, stamps: Iterable[tuple[str, int]], attributes: Attributes) -> None:
    for activity, ns in stamps:
        trace.stamp(activity, ns)
    if attributes:
        trace.annotate(attributes)
