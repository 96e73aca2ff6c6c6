"""Trace timestamps inside a model: Triton's activity names, and how a batch records them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from actors.mail.messages import QueuedRequest
from backends.interface import BatchTiming
from protocol.log.access_record import BATCH_SIZE, INSTANCE
from protocol.server_settings import Trace

REQUEST_START = "REQUEST_START"
QUEUE_START = "QUEUE_START"
COMPUTE_START = "COMPUTE_START"
COMPUTE_INPUT_END = "COMPUTE_INPUT_END"
COMPUTE_OUTPUT_START = "COMPUTE_OUTPUT_START"
COMPUTE_END = "COMPUTE_END"
REQUEST_END = "REQUEST_END"

TENSOR_QUEUE_INPUT = "TENSOR_QUEUE_INPUT"
TENSOR_BACKEND_OUTPUT = "TENSOR_BACKEND_OUTPUT"


def traces_of(batch: Sequence[QueuedRequest]) -> list[Trace]:
    return [item.request.trace for item in batch if item.request.trace is not None]


def begin_compute(traces: Sequence[Trace], started: int | None = None) -> None:
    """Computation has started, in nanoseconds of the monotonic clock, or starts now."""
    for trace in traces:
        trace.stamp(COMPUTE_START, started)


def tell_batch(traces: Sequence[Trace], instance: str, batch_size: int) -> None:
    """Say by which instance, and in which batch, the requests of these traces are computed."""
    for trace in traces:
        trace.annotate({INSTANCE: instance, BATCH_SIZE: batch_size})


def end_compute(traces: Sequence[Trace], timing: BatchTiming | None, *, has_answers: bool = True) -> None:
    """The backend is done with a batch now; `timing` (None where it failed) says how the time up to now was spent.

    A decoupled model's answers come when they like (`has_answers` false); each ends the computation for itself.
    """
    ended = time.monotonic_ns()
    for trace in traces:
        if timing is not None:
            output_start = ended - timing.compute_output_ns
            trace.stamp(COMPUTE_INPUT_END, output_start - timing.compute_infer_ns)
            trace.stamp(COMPUTE_OUTPUT_START, output_start)
        if has_answers:
            trace.stamp(COMPUTE_END, ended)
