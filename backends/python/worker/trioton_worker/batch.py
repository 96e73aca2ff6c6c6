"""One batch, between a frame and the model's objects."""

from __future__ import annotations

import mmap
import weakref
from typing import Any, NamedTuple, Sequence

import numpy as np

from .connection import Connection, Frame, Head
from .forms import Forms
from .frames import ERROR, IN_SEGMENT, INLINE_BYTE_SIZE, IS_BESIDE, LATER, RESCHEDULED
from .packing import Packing, Parts, Unpacking
from .requests import RELEASE_ALL, RELEASE_RESCHEDULE, InferenceRequest
from .responses import InferenceResponse
from .session import LiveBatch, Session
from .tensors import Tensor


class Segments:
    """The shared memory of this worker, as far as the server has given any."""

    def __init__(self) -> None:
        self._inputs: mmap.mmap | None = None
        self._outputs: mmap.mmap | None = None

    def take(self, connection: Connection, head: Head) -> None:
        """Replace what the frame brings anew. Arrays that a model holds keep the old memory mapped."""
        for name in head.get("segments", ()):
            if name == "inputs":
                self._inputs = connection.next_segment()
            else:
                self._outputs = connection.next_segment()

    def input_memory(self) -> Any:
        """An array over the whole input segment, made anew for each batch: it lives as long as a view of it."""
        return np.frombuffer(self._inputs, np.uint8)  # type: ignore[arg-type]  # the server gives one before use

    def output_memory(self, size: int) -> memoryview | None:
        """The output segment, if it can hold `size` bytes."""
        if self._outputs is None or len(self._outputs) < size:
            return None
        return memoryview(self._outputs)


class Batch:
    """The requests of an EXECUTE frame, and whether anything still holds their memory."""

    def __init__(self, frame: Frame, segments: Segments, session: Session, all_outputs: frozenset[str]) -> None:
        number, flags = frame.column[:2]
        self.is_alone = not flags & IS_BESIDE
        self._is_shared = bool(flags & IN_SEGMENT)
        memory = segments.input_memory() if self._is_shared else frame.body
        self._memory = weakref.ref(memory)
        self.live = LiveBatch(session, number)
        if "cancelled" in frame.head:
            self.live.cancelled.update(frame.head["cancelled"])
        self.requests = _decode_requests(frame, memory, all_outputs, self.live)
        if session.is_decoupled:
            for request in self.requests:
                request._open_reply()

    def is_kept(self) -> bool:
        """Whether the model holds a tensor or an array of this batch; asked when ours are gone."""
        return self._is_shared and self._memory() is not None


def _decode_requests(frame: Frame, memory: Any, all_outputs: frozenset[str], live: LiveBatch) -> list[InferenceRequest]:
    requests = [
        received_request(inputs, live, index, all_outputs)
        for index, inputs in enumerate(Unpacking(frame, live.session.forms, memory, skipped=2))
    ]
    for index, about in frame.head.get("requests", ()):
        describe_request(requests[index], about)
    return requests


def received_request(
    inputs: list[Tensor], live: LiveBatch, index: int, all_outputs: frozenset[str]
) -> InferenceRequest:
    """One of a batch, that is nothing but its inputs."""
    request = InferenceRequest.__new__(InferenceRequest)
    request._inputs = inputs
    request._model_name = request._request_id = ""
    request._model_version = -1
    request._batch = live
    request._index = index
    request._reply = request._preferred_memory = request._trace = None
    request._release_flags = RELEASE_ALL
    request._correlation_id = request._flags = request._timeout = 0
    request._parameters = {}
    request._requested_output_names = all_outputs
    return request


def describe_request(request: InferenceRequest, about: str | Head) -> None:
    """Say what a received request is besides its inputs: nothing but an id, or what the head of EXECUTE has of it."""
    if isinstance(about, str):
        request._request_id = about
        return
    request._request_id = about["id"]
    request._correlation_id = about["correlation_id"]
    request._flags = about["flags"]
    request._timeout = about["timeout"]
    request._parameters = about["parameters"]
    request._trace = about.get("trace")
    requested = about["outputs"]
    if requested is not None:
        request._requested_output_names = frozenset(requested)


class BadResult(Exception):
    """What a method of the model returned is not what it must return; the text is the whole message."""


def check_responses(responses: object, requests: Sequence[InferenceRequest]) -> Sequence[InferenceResponse | None]:
    """The return value of `execute`: for each request its response, or None where it is answered otherwise."""
    if responses is None:
        return [None] * len(requests)
    if not isinstance(responses, list):
        raise BadResult(f"Expected a list in the execute return, found type '{type(responses)}'.")
    if len(responses) != len(requests):
        raise BadResult(
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(responses)}\n"
        )
    for request, response in zip(requests, responses):
        if response is None:
            continue
        if request._release_flags == RELEASE_RESCHEDULE:
            raise BadResult(
                "Expected a None object in the execute function return list for reschduled request, found type "
                f"'{type(response)}'."
            )
        if not isinstance(response, InferenceResponse):
            raise BadResult(
                "Expected an 'InferenceResponse' object in the execute function return list, found type "
                f"'{type(response)}'."
            )
    return responses


def answered_otherwise(request: InferenceRequest, response: InferenceResponse | None) -> int:
    """RESCHEDULED or LATER for a request that is not answered by what `execute` returned for it, else 0; to be asked of
    those without a response, or with a sender."""
    if request._release_flags == RELEASE_RESCHEDULE:
        return RESCHEDULED
    reply = request._open_reply()
    assert reply is not None  # the request came from the server
    if response is None or reply.sent_count:
        return LATER
    reply.close()
    return 0


class Answer:
    """The EXECUTED frame being made: runs, head, and the tensors' bytes still where the model left them."""

    def __init__(
        self,
        responses: Sequence[InferenceResponse | None],
        requests: Sequence[InferenceRequest],
        known: Forms,
    ) -> None:
        self.head: Head = {}
        self.packing = Packing(known)
        for index, (response, request) in enumerate(zip(responses, requests)):
            if response is None or request._reply is not None:
                otherwise = answered_otherwise(request, response)
                if otherwise:
                    self.packing.add_other(otherwise)
                    continue
            assert response is not None  # or it would be answered otherwise
            self._add(index, response, request._requested_output_names)

    def _add(self, index: int, response: InferenceResponse, names: Any) -> None:
        if response._parameters:
            self.head.setdefault("parameters", []).append([index, response._parameters])
        error = response._error
        if error is not None:
            self.packing.add_other(ERROR)
            self.head.setdefault("errors", []).append([index, int(error.code()), error.message()])
            return
        self.packing.add([tensor for tensor in response._output_tensors if tensor._name in names])

    def place(self, segments: Segments, *, can_share: bool) -> Outgoing:
        """Copy the outputs into their segment, or into the frame's body.

        Copied, because outputs may be views of the batch's inputs, and would look like inputs that the model keeps.
        """
        size = self.packing.size
        shared = 0
        if size > INLINE_BYTE_SIZE and can_share:
            memory = segments.output_memory(size)
            if memory is not None:
                self.packing.copy_to(memory)
                shared = size
            else:
                self.head["wanted"] = size
        return Outgoing(self.head, self.packing.parts_let_go(is_elsewhere=shared > 0), shared)


class Outgoing(NamedTuple):
    """What an EXECUTED frame says; `shared` bytes of outputs are in their segment."""

    head: Head
    parts: Parts = ([], b"", (), 0)
    shared: int = 0


def failed_batch(message: str, trace: str = "") -> Head:
    """The head of an EXECUTED frame that fails every request of the batch."""
    return {"failure": {"message": message, "traceback": trace}}
