"""`InferenceTrace`: the part of a request's trace that a model can see."""

from __future__ import annotations

from operator import attrgetter
from typing import Callable

from .session import LiveBatch


class InferenceTrace:
    """To be given to the requests that a model makes, so that they belong to the request that it answers."""

    __slots__ = ("_batch", "_context", "_index")

    def __init__(self, batch: LiveBatch | None, index: int, context: str | None) -> None:
        self._batch = batch
        self._index = index
        self._context = context

    def get_context(self) -> str | None:
        """JSON text with `traceparent` and perhaps `tracestate`, for spans of the model's own; None where the request
        is not traced in mode `opentelemetry`."""
        return self._context


# The batch of the request that it belongs to, and that one's index there.
origin_of: Callable[[InferenceTrace], tuple[LiveBatch | None, int]] = attrgetter("_batch", "_index")
