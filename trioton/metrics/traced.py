"""Traced requests as exemplars of the metrics."""

from __future__ import annotations

import time

from actors.metrics.exemplars import Exemplar, Exemplars
from actors.tracing.record import RequestTrace
from actors.tracing.stamps import REQUEST_END, REQUEST_START


def note_trace(exemplars: Exemplars, trace: RequestTrace) -> None:
    """Keep a trace that has ended, if it is exported under an id, and its request has run."""
    stamps = dict(trace.stamps)
    context = trace.span_context
    if context is None or REQUEST_START not in stamps or REQUEST_END not in stamps:
        return
    taken_us = (stamps[REQUEST_END] - stamps[REQUEST_START]) / 1000
    exemplar = Exemplar(f"{context.trace_id:032x}", f"{context.span_id:016x}", taken_us, time.time())
    exemplars.note(trace.model_name, trace.model_version, exemplar)
