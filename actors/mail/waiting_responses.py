"""Responses of one request to a decoupled model that its caller has not taken yet: counted, and bounded in bytes.

Flow: model instance → response stream → [waiting responses] → the request's caller. Backpressure for the model.
"""

from __future__ import annotations

from collections import deque
from types import TracebackType

from protocol.limits.response_memory import ResponseMemory
from protocol.messages import InferenceResponse


class WaitingResponses:
    """A `with` block around all that the caller does with them; at its end, also by cancellation, nothing of them
    counts any more. They are taken in the order in which they were put; each counts until it has been passed on."""

    __slots__ = ("_is_over", "_kept", "_memory", "_sizes")

    def __init__(self, memory: ResponseMemory | None) -> None:
        self._memory = ResponseMemory() if memory is None else memory
        self._sizes: deque[int] = deque()
        self._kept = 0
        self._is_over = False

    def __enter__(self) -> WaitingResponses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self._memory.keep(-self._kept)
        self._memory.give(sum(self._sizes))  # whoever waits for room is woken, too
        self._sizes.clear()

    @property
    def is_idle(self) -> bool:
        """Whether the caller is there, and none waits for it or is being passed on."""
        return not (self._sizes or self._is_over)

    def put(self, response: InferenceResponse) -> bool:
        """Whether there is room for one more, which counts from then on; after the end there always is."""
        if self._is_over:
            return True
        size = response_size(response)
        if not self._memory.take(size):
            return False
        self._sizes.append(size)
        return True

    async def put_later(self, response: InferenceResponse) -> None:
        """As `put`, waiting until there is room."""
        while not self.put(response):
            await self._memory.wait_freed()

    def keep(self, response: InferenceResponse) -> None:
        """Count one only against the bound over all calls, until the request ends: it waits for an earlier request to
        end, whose responses it must not delay."""
        if not self._is_over:
            size = response_size(response)
            self._kept += size
            self._memory.keep(size)

    def remove_first(self) -> None:
        """The first was passed on."""
        if self._sizes:
            self._memory.give(self._sizes.popleft())

    def remove_last(self) -> None:
        """The last was not sent after all."""
        if self._sizes:
            self._memory.give(self._sizes.pop())


def response_size(response: InferenceResponse) -> int:
    """The size of its tensors in bytes."""
    size = 0
    for tensor in response.outputs:  # `byte_size` of each, written out: tokens come one by one
        data = tensor.data
        size += len(data) if type(data) is bytes else tensor.byte_size
    return size
