"""Trace mode `opentelemetry`: exports finished traces as spans to a collector, by OTLP over HTTP.

Flow: tracer → [trace export] → the library's own thread → collector. Needs the extra `trace`. Spans are made when a
request has ended, from its stamps, so that tracing costs the request no more than in mode `triton`; nothing of the
library is global to the process. Source: Triton, "Tracing", mode opentelemetry.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanKind, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from actors.tracing.record import RequestTrace
from actors.tracing.settings import ExportSettings
from actors.tracing.sink import CannotTrace
from actors.tracing.stamps import (
    COMPUTE_END,
    COMPUTE_INPUT_END,
    COMPUTE_OUTPUT_START,
    COMPUTE_START,
    QUEUE_START,
    REQUEST_END,
    REQUEST_START,
)

ROOT_SPAN = "InferRequest"
COMPUTE_SPAN = "compute"
DEFAULT_SERVICE_NAME = "triton-inference-server"

Stamps = Sequence[tuple[str, int]]

_COMPUTE_ACTIVITIES = frozenset({COMPUTE_START, COMPUTE_INPUT_END, COMPUTE_OUTPUT_START, COMPUTE_END})
_MODEL_ACTIVITIES = frozenset({REQUEST_START, QUEUE_START, REQUEST_END})


class TraceExport:
    """The exporter of one server. Spans that cannot be sent are dropped and logged by the library."""

    def __init__(self, settings: ExportSettings) -> None:
        """Raises CannotTrace if the settings contradict each other."""
        self._exporter = OTLPSpanExporter(endpoint=settings.url)
        try:
            processor = BatchSpanProcessor(
                self._exporter,
                max_queue_size=settings.bsp_max_queue_size,
                schedule_delay_millis=settings.bsp_schedule_delay,
                max_export_batch_size=settings.bsp_max_export_batch_size,
            )
        except ValueError as error:
            raise CannotTrace(f"the trace settings bsp_* (or OTEL_BSP_*) contradict each other: {error}") from None
        # Which requests are traced is decided already, whatever the caller's sampled flag and OTEL_TRACES_SAMPLER say.
        self._ids = PresetIds()
        self._provider = TracerProvider(ALWAYS_ON, _resource(settings), shutdown_on_exit=False, id_generator=self._ids)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("trioton")

    def write(self, traces: Sequence[RequestTrace]) -> None:
        # Stamps are of the monotonic clock, spans are of the wall clock.
        epoch = time.time_ns() - time.monotonic_ns()
        for trace in traces:
            _make_spans(self._tracer, self._ids, trace, epoch)

    def close(self) -> None:
        self._provider.shutdown()

    def abort(self) -> None:
        # It gives up its retries.
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the library gives it no types


def _resource(settings: ExportSettings) -> Resource:
    """The flags' attributes, those of OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME, and a name in any case."""
    resource = Resource.create(dict(settings.resource))
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: DEFAULT_SERVICE_NAME}))
    return resource


class PresetIds(RandomIdGenerator):
    """Random ids, but for those that were decided before: the next span gets `trace_id` and `span_id`, where they are
    not 0."""

    def __init__(self) -> None:
        self.trace_id = 0
        self.span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id or super().generate_trace_id()

    def generate_span_id(self) -> int:
        return self.span_id or super().generate_span_id()


def _make_spans(tracer: Tracer, ids: PresetIds, trace: RequestTrace, epoch: int) -> None:
    """A root span with the edge's stamps as events; in it the model's span; in that the compute span."""
    stamps = [(name, ns + epoch) for name, ns in sorted(trace.stamps, key=lambda stamp: stamp[1])]
    if not stamps:
        return
    compute = [stamp for stamp in stamps if stamp[0] in _COMPUTE_ACTIVITIES]
    model = [stamp for stamp in stamps if stamp[0] in _MODEL_ACTIVITIES]
    edge = [stamp for stamp in stamps if stamp[0] not in _COMPUTE_ACTIVITIES | _MODEL_ACTIVITIES]
    attributes: dict[str, str | int] = {
        "triton.model_name": trace.model_name,
        "triton.model_version": trace.model_version,
        "triton.trace_id": trace.id,
        "triton.trace_parent_id": trace.parent_id,
    }
    if trace.request_id:
        attributes["triton.request_id"] = trace.request_id
    preset = trace.span_context
    ids.trace_id = 0 if preset is None else preset.trace_id
    own = {**attributes, **trace.attributes}
    context = _make_span(tracer, ROOT_SPAN, edge, _parent(trace), stamps, own, SpanKind.SERVER)
    if model:
        context = _make_span(tracer, trace.model_name, model, context, model + compute, attributes)
    if compute:
        ids.span_id = 0 if preset is None else preset.span_id
        _make_span(tracer, COMPUTE_SPAN, compute, context, compute, {})
        ids.span_id = 0


def _make_span(
    tracer: Tracer,
    name: str,
    events: Stamps,
    parent: Context,
    extent: Stamps,
    attributes: Mapping[str, str | int | float | Sequence[str]],
    kind: SpanKind = SpanKind.INTERNAL,
) -> Context:
    """A finished span over all of `extent`; returns the context for its children."""
    times = [ns for _, ns in extent]
    span = tracer.start_span(name, parent, kind, attributes, start_time=min(times))
    for event, ns in events:
        span.add_event(event, timestamp=ns)
    span.end(max(times))
    return set_span_in_context(span, parent)


def _parent(trace: RequestTrace) -> Context:
    """The caller's span; an empty context where there is none, or where the headers are not what W3C says."""
    traceparent, tracestate = trace.parent_context
    headers = {"traceparent": traceparent}
    if tracestate:
        headers["tracestate"] = tracestate
    return TraceContextTextMapPropagator().extract(headers, Context())
