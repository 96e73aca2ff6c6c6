"""A wrapper of the core that captures payloads of clients; there only where they are to be.

Flow: edge → [capturing core] → core. Models' own requests to other models do not come by here.
"""

from __future__ import annotations

from typing import Any

from actors.capture.capture import Capture
from actors.capture.captured_call import CapturedCall
from protocol.core import InferenceCore, ReplyChannel, Respond, Submitted
from protocol.errors import ServerError
from protocol.messages import InferenceRequest, InferenceResponse


class CapturingCore:
    """An `InferenceCore` some of whose inferences are captured; all else is the core's own."""

    def __init__(self, core: InferenceCore, capture: Capture) -> None:
        self._core = core
        self._capture = capture

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def submit(self, request: InferenceRequest, reply_to: ReplyChannel, *, later: bool = False) -> Submitted:
        call = self._capture.begin(request)
        if call is None:
            return self._core.submit(request, reply_to, later=later)
        return _CapturedSubmission(self._core.submit(request, _CapturedReply(reply_to, call), later=later), call)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        call = self._capture.begin(request)
        if call is None:
            return await self._core.infer(request)
        is_cancelled = True
        try:
            response = await self._core.infer(request)
            call.take(response)
            is_cancelled = False
            return response
        except ServerError as error:
            call.take(error)
            raise
        finally:
            call.end(is_cancelled=is_cancelled)

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        call = self._capture.begin(request)
        if call is None:
            return await self._core.infer_stream(request, respond)

        async def respond_captured(response: InferenceResponse) -> None:
            call.take(response)
            await respond(response)

        is_cancelled = True
        try:
            is_final = await self._core.infer_stream(request, respond_captured)
            is_cancelled = False
            return is_final
        except ServerError as error:
            call.take(error)
            raise
        finally:
            call.end(is_cancelled=is_cancelled)


class _CapturedReply:
    """Captures the reply on its way. Implements `protocol.core.ReplyChannel`."""

    __slots__ = ("_call", "_reply_to")

    def __init__(self, reply_to: ReplyChannel, call: CapturedCall) -> None:
        self._reply_to = reply_to
        self._call = call

    def send_nowait(self, value: InferenceResponse | ServerError, /) -> None:
        self._call.take(value)
        self._reply_to.send_nowait(value)


class _CapturedSubmission:
    """Implements `protocol.core.Submitted`."""

    __slots__ = ("_call", "_submitted")

    def __init__(self, submitted: Submitted, call: CapturedCall) -> None:
        self._submitted = submitted
        self._call = call

    @property
    def request(self) -> InferenceRequest:
        return self._submitted.request

    @property
    def arrival(self) -> float:
        return self._submitted.arrival

    def end(self) -> None:
        try:
            self._submitted.end()
        finally:
            self._call.end()

    def give_up(self) -> None:
        try:
            self._submitted.give_up()
        finally:
            self._call.end(is_cancelled=True)
