"""BLS in the worker: `InferenceRequest.exec` and `async_exec`.

A call crosses to the server as a request of the caller's batch, so that it ends when the caller's client leaves. Errors
come as responses, never as exceptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, AsyncIterator, Iterator

from .calls import Call, ServerGone
from .connection import Frame, Head
from .device import find_library
from .errors import TritonError, TritonErrorCode, TritonModelException
from .frames import UNTAKEN_RESPONSES, beyond_limit
from .packing import Packing
from .preferred_memory import MemoryType
from .records import RequestRecord
from .responses import InferenceResponse, failed_response, response_of, unpack_response
from .session import Session, session
from .tensors import on_device
from .trace import InferenceTrace, origin_of

if TYPE_CHECKING:
    import asyncio

_WHAT = "to call another model"
_TRANSPORT_FAILED = "An error occurred while performing BLS request."
# So many responses were looked at before the server is told.
_TAKEN_AT_ONCE = UNTAKEN_RESPONSES // 2


class _NotSent(Exception):
    """The request cannot be sent; the text says why."""


def execute(request: RequestRecord, decoupled: bool) -> Any:
    """Run the request's model and wait: an InferenceResponse, or a ResponseIterator where `decoupled`."""
    try:
        call = _begin(request, decoupled)
        if decoupled:
            return ResponseIterator(call, device_id=_preferred_device(request))
        return _response(call, call.wait(), _preferred_device(request))
    except ServerGone:
        return _gone(decoupled)
    except _NotSent as error:
        return _failed(decoupled, str(error), TritonError.INVALID_ARG)


def async_execute(request: RequestRecord, decoupled: bool) -> Any:
    """As `execute`, to be awaited; begins at once. Cancelled, the server gives the call up."""
    here = session()
    if here is not None:
        here.connection.check_may_wait(_WHAT)
    import asyncio  # the caller has it

    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()
    try:
        call = _begin(request, decoupled)
    except ServerGone:
        result.set_result(_gone(decoupled))
        return result
    except _NotSent as error:
        result.set_result(_failed(decoupled, str(error), TritonError.INVALID_ARG))
        return result
    if decoupled:
        result.set_result(ResponseIterator(call, device_id=_preferred_device(request)))
        return result

    def finish() -> None:
        if not result.done():
            result.set_result(_response(call, call.take(), _preferred_device(request)))

    def give_up(result: asyncio.Future[Any]) -> None:
        if result.cancelled():
            call.forget()

    result.add_done_callback(give_up)
    call.when_news(loop, finish)
    return result


def _news(call: Call) -> asyncio.Future[None]:
    """Done when the call has something to give."""
    import asyncio

    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def resolve() -> None:
        if not future.done():
            future.set_result(None)

    call.when_news(loop, resolve)
    return future


def _response(call: Call, frame: Frame | None, device_id: int | None) -> InferenceResponse:
    if frame is None:
        return failed_response(_TRANSPORT_FAILED)
    return _placed(unpack_response(frame, call.calls.schemas), device_id)


def _preferred_device(request: RequestRecord) -> int | None:
    """The GPU that the outputs should be on; None for the CPU."""
    preferred = request.header.preferred_memory
    if preferred is None or preferred.preferred_memory_type is not MemoryType.TRITONSERVER_MEMORY_GPU:
        return None
    device_id: int = preferred.preferred_device_id
    return device_id


def _placed(response: InferenceResponse, device_id: int | None) -> InferenceResponse:
    """The response with its outputs on that GPU. They stay on the CPU where no GPU can be used: it is a preference."""
    tensors, error, parameters = response._parts
    if device_id is None or not tensors or find_library() is None:
        return response
    try:
        return response_of(([on_device(tensor, device_id) for tensor in tensors], error, parameters))
    except TritonModelException as problem:
        return failed_response(str(problem))


def _gone(decoupled: bool) -> Any:
    return _failed(decoupled, _TRANSPORT_FAILED, TritonError.INTERNAL)


def _failed(decoupled: bool, message: str, code: TritonErrorCode) -> Any:
    failed = failed_response(message, code)
    return ResponseIterator(None, [failed]) if decoupled else failed


def _begin(request: RequestRecord, decoupled: bool) -> Call:
    here = session()
    if here is None or not here.can_infer:
        raise TritonModelException("BLS is only supported during the 'execute' function.")
    here.connection.check_may_wait(_WHAT)
    packing = Packing(here.schemas)
    packing.add(request.inputs)
    if packing.size > here.byte_limit:
        raise _NotSent(beyond_limit("The inputs of the BLS request take", packing.size, here.byte_limit))
    header = request.header
    head: Head = {"model": header.model_name, "outputs": list(header.output_names)}
    _say_caller(head, here, request.inference_trace())
    # Most calls leave out most of it, and a short head is a fast one.
    if decoupled:
        head["stream"] = True
    if header.model_version != -1:
        head["version"] = header.model_version
    if request.id:
        head["id"] = request.id
    if header.correlation_id:
        head["correlation_id"] = header.correlation_id
    if header.flags:
        head["flags"] = header.flags
    if header.timeout:
        head["timeout"] = header.timeout
    if header.parameters:
        head["parameters"] = header.parameters
    return here.calls.infer(head, packing)


def _say_caller(head: Head, here: Session, trace: InferenceTrace) -> None:
    """Whose call it is: the request whose trace was given, or else all those of the batch."""
    batch, index = origin_of(trace)
    if batch is not None:
        head["batch"] = batch.number
        head["index"] = index
        head["is_traced"] = True
        return
    batch = here.calling_batch()
    if batch is not None:
        head["batch"] = batch.number


class ResponseIterator:
    """The responses of a decoupled call, as they come; `for` and `async for` both work. The last one may be empty.

    Once it has ended it may be iterated again, and gives the same responses. One that is dropped before lets the called
    model finish; `cancel` asks it to stop.
    """

    __slots__ = ("_call", "_device_id", "_position", "_responses", "_untold")

    def __init__(
        self, call: Call | None, responses: list[InferenceResponse] | None = None, *, device_id: int | None = None
    ) -> None:
        self._call = call
        self._device_id = device_id
        self._responses: list[InferenceResponse] = responses or []
        self._position = 0
        self._untold = 0

    def __iter__(self) -> Iterator[InferenceResponse]:
        if self._call is None:
            self._position = 0
        return self

    def __next__(self) -> InferenceResponse:
        response = self._stored()
        if response is None and self._call is not None:
            try:
                response = self._received(self._call.wait())
            except ServerGone:
                response = self._lost()
        if response is None:
            raise StopIteration
        return response

    def __aiter__(self) -> AsyncIterator[InferenceResponse]:
        self.__iter__()
        return self

    async def __anext__(self) -> InferenceResponse:
        response = self._stored()
        if response is None and self._call is not None:
            await _news(self._call)
            response = self._received(self._call.take())
        if response is None:
            raise StopAsyncIteration
        return response

    def cancel(self) -> None:
        """Ask the server to stop; a response with the error CANCELLED ends the iteration then."""
        if self._call is not None:
            self._call.forget()

    def _stored(self) -> InferenceResponse | None:
        if self._position == len(self._responses):
            return None
        self._position += 1
        return self._responses[self._position - 1]

    def _received(self, frame: Frame | None) -> InferenceResponse | None:
        call = self._call
        if frame is None or call is None:
            self._call = None
            return None
        self._untold += 1
        if self._untold == _TAKEN_AT_ONCE:
            call.count_taken(self._untold)
            self._untold = 0
        return self._keep(_placed(unpack_response(frame, call.calls.schemas), self._device_id))

    def _keep(self, response: InferenceResponse) -> InferenceResponse:
        self._responses.append(response)
        self._position += 1
        return response

    def _lost(self) -> InferenceResponse:
        self._call = None
        return self._keep(failed_response(_TRANSPORT_FAILED))

    def __del__(self) -> None:
        if self._call is not None:
            self._call.ignore()
