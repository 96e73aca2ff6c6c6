"""Captured call: one request and what it was answered, as long as it waits to be written."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from protocol.errors import Decoupled, NotFound, ServerError
from protocol.messages import InferenceRequest, InferenceResponse, ParameterValue, Tensor
from protocol.origin import RequestTags
from protocol.tensors.device_tensor import DeviceTensor
from protocol.tensors.shared_tensor import SharedTensor

# What a request counts for beside its tensors.
_OVERHEAD_BYTES = 1024


class Memory:
    """What all captured calls hold, in bytes."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def has_taken(self, size: int) -> bool:
        """Count this; false where that would be too much, and nothing is counted."""
        if size > self.limit - self.held:
            return False
        self.held += size
        return True


class CapturedCall:
    """`finished` is called once with it when it has ended, unless there is nothing to be written.

    Attributes:
        size: the bytes that it counts for.
        is_cut: there was no memory for all responses; those that came last are missing.
        outcome: "ok", "error" or "cancelled", once it has ended.
    """

    __slots__ = (
        *("_begun_ns", "_finished", "_memory", "error", "inputs", "is_cut", "outcome", "own_id", "parameters"),
        *("duration_ns", "model", "outputs", "responses", "size", "tags", "time_ns", "version"),
    )

    def __init__(
        self, request: InferenceRequest, memory: Memory, size: int, finished: Callable[[CapturedCall], None]
    ) -> None:
        self.model = request.model_name
        self.version = request.model_version
        self.own_id = request.id
        self.inputs: Sequence[Tensor] = [described(tensor) for tensor in request.inputs]
        self.outputs = request.requested_outputs
        self.parameters = _parameters(request)
        self.tags = RequestTags() if request.origin is None else request.origin.tags(request.id)
        self.responses: list[InferenceResponse] = []
        self.error: ServerError | None = None
        self.is_cut = False
        self.outcome = ""
        self.time_ns = time.time_ns()
        self.duration_ns = 0
        self.size = size
        self._begun_ns = time.monotonic_ns()
        self._memory = memory
        self._finished: Callable[[CapturedCall], None] | None = finished

    def take(self, reply: InferenceResponse | ServerError) -> None:
        """A response, or the error that ends it."""
        if isinstance(reply, ServerError):
            self.error = reply
            return
        if self._finished is None or self.is_cut:
            return
        size = size_of(reply.outputs, reply.parameters)
        if not self._memory.has_taken(size):
            self.is_cut = True
            return
        self.size += size
        self.version = reply.model_version
        kept = InferenceResponse(
            reply.model_name,
            reply.model_version,
            [described(tensor) for tensor in reply.outputs],
            reply.id,
            dict(reply.parameters),
            reply.is_final,
        )
        self.responses.append(kept)

    def end(self, *, is_cancelled: bool = False) -> None:
        """It has ended. Idempotent. What no model that serves was asked for is not written."""
        finished, self._finished = self._finished, None
        if finished is None:
            return
        if isinstance(self.error, NotFound | Decoupled):
            self._memory.held -= self.size
            return
        self.duration_ns = time.monotonic_ns() - self._begun_ns
        self.outcome = "error" if self.error is not None else "cancelled" if is_cancelled else "ok"
        finished(self)


def size_of(tensors: Sequence[Tensor], parameters: Mapping[str, ParameterValue] = MappingProxyType({})) -> int:
    """What tensors, and parameters beside them, count for while they wait."""
    texts = sum([len(value) for value in parameters.values() if isinstance(value, str)]) if parameters else 0
    return _OVERHEAD_BYTES + texts + sum([0 if is_elsewhere(tensor) else tensor.byte_size for tensor in tensors])


def is_elsewhere(tensor: object) -> bool:
    """Whether its elements lie on a device, or in a client's memory."""
    return isinstance(tensor, DeviceTensor | SharedTensor)


class ElsewhereTensor(Tensor):
    """A tensor whose elements are not captured."""


def described(tensor: Tensor) -> Tensor:
    """The tensor, without what may be gone when it is written."""
    if is_elsewhere(tensor):
        return ElsewhereTensor(tensor.name, tensor.datatype, tensor.shape, b"")
    return tensor


def _parameters(request: InferenceRequest) -> dict[str, bool | int | float | str]:
    """All of them, as the JSON of the protocol has them."""
    found = dict(request.parameters)
    if request.sequence_id:
        found["sequence_id"] = request.sequence_id
        found["sequence_start"], found["sequence_end"] = request.sequence_start, request.sequence_end
    if request.priority:
        found["priority"] = request.priority
    if request.timeout_microseconds:
        found["timeout"] = request.timeout_microseconds
    return found
