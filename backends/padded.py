"""Padding wrapper: applies shape rules around a backend that does not support them.

Flow: model instance → [pad] → backend → [trim] → model instance. Made by the model actor where the configuration has
shape rules and the backend does not follow them itself (`Backend.joins_requests`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import trio

from backends.interface import STARTED, Backend, BatchResult, BatchTiming, Responder, Started
from backends.padding import Padding
from protocol.core import MemoryUsage
from protocol.errors import ServerError
from protocol.messages import InferenceRequest, InferenceResponse


class PaddedBackend(Backend):
    """Pads and trims in the server's loop; backends that gather in a thread of their own do it there."""

    def __init__(self, backend: Backend, padding: Padding) -> None:
        super().__init__(backend.spec)
        self._backend = backend
        self._padding = padding
        # What the backend was given for each request that it has not answered yet.
        self._given: dict[InferenceRequest, InferenceRequest] = {}
        self._gone: list[InferenceRequest] = []  # whose callers went before their batch began
        self.can_overlap = backend.can_overlap
        self.can_run_ahead = backend.can_run_ahead

    @property
    def unload_seconds(self) -> float:  # type: ignore[override]  # read only: it is that of the backend inside
        return self._backend.unload_seconds

    async def load(self) -> None:
        await self._backend.load()

    def retire(self) -> None:
        self._backend.retire()

    async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        padded = self._pad(requests)
        try:
            return self._trim(requests, await self._backend.execute(padded))
        finally:
            self._forget(requests)

    async def execute_overlapping(self, requests: Sequence[InferenceRequest], free: Callable[[], None]) -> BatchResult:
        padded = self._pad(requests)
        try:
            return self._trim(requests, await self._backend.execute_overlapping(padded, free))
        finally:
            self._forget(requests)

    def begin(
        self,
        requests: Sequence[InferenceRequest],
        done: Callable[[BatchResult | Exception], None],
        free: Callable[[], None] | None = None,
    ) -> BatchResult | Started | None:
        result: BatchResult | Started | None = None
        try:
            result = self._backend.begin(self._pad(requests), partial(self._end_begun, requests, done), free)
            return self._trim(requests, result) if isinstance(result, BatchResult) else result
        finally:
            if result is not STARTED:
                self._forget(requests)

    def _end_begun(
        self,
        requests: Sequence[InferenceRequest],
        done: Callable[[BatchResult | Exception], None],
        result: BatchResult | Exception,
    ) -> None:
        self._forget(requests)
        done(self._trim(requests, result) if isinstance(result, BatchResult) else result)

    async def execute_decoupled(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder]
    ) -> BatchTiming:
        return await self._backend.execute_decoupled(self._pad(requests), self._trimming(requests, responders))

    async def execute_decoupled_overlapping(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder], free: Callable[[], None]
    ) -> BatchTiming:
        trimming = self._trimming(requests, responders)
        return await self._backend.execute_decoupled_overlapping(self._pad(requests), trimming, free)

    def _trimming(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder]
    ) -> Sequence[_TrimmingResponder]:
        return [
            _TrimmingResponder(request, responder, self._padding, self._given)
            for request, responder in zip(requests, responders, strict=True)
        ]

    def cancel(self, request: InferenceRequest) -> None:
        given = self._given.get(request)
        if given is not None:
            self._backend.cancel(given)
        else:
            self._gone.append(request)

    def memory_usage(self) -> Sequence[MemoryUsage]:
        return self._backend.memory_usage()

    def arena_bytes(self) -> int:
        return self._backend.arena_bytes()

    def known_readiness(self) -> bool | None:
        return self._backend.known_readiness()

    async def is_ready(self) -> bool:
        return await self._backend.is_ready()

    def death_text(self) -> str:
        return self._backend.death_text()

    async def wait_died(self) -> None:
        await self._backend.wait_died()

    async def attend(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self._backend.attend(task_status=task_status)

    async def unload(self) -> None:
        self._given.clear()
        await self._backend.unload()

    def _pad(self, requests: Sequence[InferenceRequest]) -> list[InferenceRequest]:
        padded = [self._padding.pad(request) for request in requests]
        self._given.update(zip(requests, padded, strict=True))
        gone, self._gone = self._gone, []
        for request in gone:
            if request in self._given:
                self._backend.cancel(self._given[request])
        return padded

    def _forget(self, requests: Sequence[InferenceRequest]) -> None:
        for request in requests:
            self._given.pop(request, None)

    def _trim(self, requests: Sequence[InferenceRequest], result: BatchResult) -> BatchResult:
        responses = [
            self._trimmed(request, response) for request, response in zip(requests, result.responses, strict=True)
        ]
        return BatchResult(responses, result.timing)

    def _trimmed(
        self, request: InferenceRequest, response: InferenceResponse | ServerError
    ) -> InferenceResponse | ServerError:
        if isinstance(response, ServerError):
            return response
        try:
            return self._padding.trim(request, response)
        except ServerError as error:
            return error


class _TrimmingResponder:
    """A responder whose responses are trimmed; one that cannot be ends the request."""

    def __init__(
        self,
        request: InferenceRequest,
        responder: Responder,
        padding: Padding,
        given: dict[InferenceRequest, InferenceRequest],
    ) -> None:
        self._request = request
        self._responder = responder
        self._padding = padding
        self._given = given

    @property
    def is_cancelled(self) -> bool:
        return self._responder.is_cancelled

    async def send(self, response: InferenceResponse) -> None:
        trimmed = self._trimmed(response)
        if trimmed is not None:
            await self._responder.send(trimmed)
            self._forget_if(response.is_final)

    def send_nowait(self, response: InferenceResponse) -> bool:
        trimmed = self._trimmed(response)
        if trimmed is None:
            return True
        is_sent = self._responder.send_nowait(trimmed)
        self._forget_if(is_sent and response.is_final)
        return is_sent

    def close(self, error: ServerError | None = None) -> None:
        self._forget_if(True)
        self._responder.close(error)

    def _forget_if(self, has_ended: bool) -> None:
        if has_ended:
            self._given.pop(self._request, None)

    def _trimmed(self, response: InferenceResponse) -> InferenceResponse | None:
        try:
            return self._padding.trim(self._request, response)
        except ServerError as error:
            self.close(error)
            return None
