"""The trace of one request in progress: its timestamps, tensors and span context.

Flow: edge → core → model → model instance → edge, carried by the request; `end` hands it to the tracer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from actors.tracing.context import SpanContext, new_span_context
from actors.tracing.sampling import TraceSampling
from protocol.messages import LATEST_VERSION, Tensor
from protocol.server_settings import TracedTensor

# A stream may answer without end; its trace must not grow with it.
MAX_STAMPS = 4096


class TensorBudget:
    """How many bytes of tensors may be held by traces that are not yet written."""

    def __init__(self, size: int) -> None:
        self._left = size

    def take(self, size: int) -> bool:
        if size > self._left:
            return False
        self._left -= size
        return True

    def give_back(self, size: int) -> None:
        self._left += size


@dataclass(frozen=True, slots=True)
class RecordedTensor:
    activity: str
    tensor: Tensor


class RequestTrace:
    """Implements `protocol.server_settings.Trace`. `parent_context` are the headers `traceparent` and `tracestate`;
    `parent_id` is the trace that this one is a child of, 0 for none. `span_context` has its spans' ids, once they were
    asked for or it has ended, if there are to be spans."""

    __slots__ = (
        "_budget",
        "_finish",
        "_is_open",
        "_new_id",
        "attributes",
        "id",
        "is_cut",
        "model_name",
        "model_version",
        "parent_context",
        "parent_id",
        "request_id",
        "sampling",
        "span_context",
        "stamps",
        "tensor_bytes",
        "tensors",
    )

    def __init__(
        self,
        id: int,
        model_name: str,
        sampling: TraceSampling,
        budget: TensorBudget,
        finish: Callable[[RequestTrace], None],
        parent_context: tuple[str, str] = ("", ""),
        *,
        parent_id: int = 0,
        new_id: Callable[[], int] | None = None,
    ) -> None:
        self.id = id
        self.model_name = model_name
        self.model_version = LATEST_VERSION
        self.request_id = ""
        self.sampling = sampling
        self.parent_context = parent_context
        self.parent_id = parent_id
        self.span_context: SpanContext | None = None
        self.stamps: list[tuple[str, int]] = []
        self.attributes: dict[str, str | int | float | Sequence[str]] = {}
        self.tensors: list[RecordedTensor] = []
        self.tensor_bytes = 0
        self.is_cut = False
        self._budget = budget
        self._finish = finish
        self._new_id = new_id
        self._is_open = True

    def stamp(self, activity: str, ns: int | None = None) -> None:
        if not self._is_open or not self.sampling.has_timestamps:
            return
        if len(self.stamps) < MAX_STAMPS:
            self.stamps.append((activity, time.monotonic_ns() if ns is None else ns))
        else:
            self.is_cut = True

    def identify(self, model_version: int, request_id: str) -> None:
        if self._is_open:
            self.model_version, self.request_id = model_version, request_id

    def record_tensors(self, activity: str, tensors: Sequence[TracedTensor]) -> None:
        """Tensors beyond the budget are left out."""
        if not self._is_open or not self.sampling.has_tensors:
            return
        for tensor in tensors:
            view = memoryview(tensor.data)
            if not self._budget.take(view.nbytes):
                self.is_cut = True
                continue
            self.tensor_bytes += view.nbytes
            # A copy: what it views may be a client's memory, which is theirs again when the request is answered.
            copied = Tensor(tensor.name, tensor.datatype, tensor.shape, bytes(view))
            self.tensors.append(RecordedTensor(activity, copied))

    def annotate(self, attributes: Mapping[str, str | int | float | Sequence[str]]) -> None:
        if self._is_open and self.sampling.makes_spans:
            self.attributes.update(attributes)

    def child(self, model: str) -> RequestTrace | None:
        if not self._is_open or self._new_id is None:
            return None
        context = ("", "") if self.context() is None or self.span_context is None else self.span_context.headers
        return RequestTrace(
            self._new_id(),
            model,
            self.sampling,
            self._budget,
            self._finish,
            context,
            parent_id=self.id,
            new_id=self._new_id,
        )

    def context(self) -> str | None:
        if not self._is_open or not self.sampling.makes_spans:
            return None
        return self._decided_context().text

    def _decided_context(self) -> SpanContext:
        if self.span_context is None:
            self.span_context = new_span_context(*self.parent_context)
        return self.span_context

    def end(self) -> None:
        if self._is_open:
            self._is_open = False
            if self.sampling.makes_spans:
                self._decided_context()
            self._finish(self)

    def release(self) -> None:
        """Called by the tracer, when the trace is written or lost."""
        self._budget.give_back(self.tensor_bytes)
        self.tensor_bytes = 0
        self.tensors = []
