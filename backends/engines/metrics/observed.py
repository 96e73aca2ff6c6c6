"""Observed responder: sees how a request to an engine ends that no edge observes, as those of `generate` and gRPC.

Flow: generations → [observed responder] → responder of the model instance. Made by the backend, where calls are
observed.
"""

from __future__ import annotations

import time

from backends.engines.tensors.sampling import SamplingFields
from backends.interface import NotBegun, Responder
from protocol.errors import ServerError
from protocol.gen_ai import TEXT_COMPLETION, GenAi, GenAiCall, requested
from protocol.messages import InferenceRequest, InferenceResponse


class ObservedResponder:
    """Implements `backends.interface.Responder`."""

    def __init__(self, gen_ai: GenAi, request: InferenceRequest, responder: Responder) -> None:
        self._request = request
        self._responder = responder
        self._call = GenAiCall(gen_ai, TEXT_COMPLETION, model=request.model_name, arrival_ns=time.monotonic_ns())
        request.gen_ai = self._call

    def ask(self, fields: SamplingFields) -> None:
        """What the request says."""
        self._call.requested = requested(fields)

    @property
    def is_cancelled(self) -> bool:
        return self._responder.is_cancelled

    async def send(self, response: InferenceResponse) -> None:
        if response.is_final:
            self._call.end(self._request.trace)
        await self._responder.send(response)

    def send_nowait(self, response: InferenceResponse) -> bool:
        if response.is_final:  # its edge may end the trace as soon as it has this
            self._call.end(self._request.trace)
        return self._responder.send_nowait(response)

    def close(self, error: ServerError | None = None) -> None:
        if isinstance(error, NotBegun):  # another instance will
            self._request.gen_ai = None
        else:
            if error is not None:
                self._call.fail(error)
            self._call.end(self._request.trace)
        self._responder.close(error)
