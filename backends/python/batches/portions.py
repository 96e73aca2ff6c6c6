"""Splits batches whose inputs exceed the limit of a worker into portions, or refuses them.

A plain policy; `worker_room` decides which are too large, `backend` runs a batch in portions.
"""

from __future__ import annotations

from collections.abc import Sequence

from backends.python.worker.trioton_worker.frames import aligned, beyond_limit
from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest


class BatchTooLarge(Exception):
    """The inputs of a batch exceed what its worker may hold at a time. Nothing of it was sent."""


def input_size(requests: Sequence[InferenceRequest]) -> int:
    """Bytes of its inputs as they lie in shared memory."""
    return sum(aligned(tensor.byte_size) for request in requests for tensor in request.inputs)


def portions(requests: Sequence[InferenceRequest], limit: int) -> list[slice]:
    """The portions: requests that go to the worker together, in order, as many at a time as its limit allows; one that
    is too large by itself is alone."""
    found: list[slice] = []
    start = size = 0
    for index, request in enumerate(requests):
        more = input_size([request])
        if index > start and size + more > limit:
            found.append(slice(start, index))
            start, size = index, 0
        size += more
    if start < len(requests):
        found.append(slice(start, len(requests)))
    return found


def too_large(model: str, requests: Sequence[InferenceRequest], limit: int) -> InvalidArgument:
    """The error for what can never be sent to a worker: one request, or several that must not be split."""
    what = "the request's inputs" if len(requests) == 1 else f"the inputs of a batch of {len(requests)} sequences"
    return InvalidArgument(f"model '{model}': {beyond_limit(f'{what} take', input_size(requests), limit)}")
