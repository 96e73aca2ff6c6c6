"""One batch, between a frame and the model's objects."""

from __future__ import annotations

import mmap
import weakref
from typing import Any

import numpy as np

from .connection import Buffer, Connection, Frame, Head
from .frames import ALIGNMENT, INLINE_BYTE_SIZE, aligned
from .requests import InferenceRequest, InferenceResponse
from .tensors import Raw, received_tensor

_PADDING = bytes(ALIGNMENT)


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

    def __init__(self, frame: Frame, segments: Segments, all_outputs: frozenset[str]) -> None:
        self.is_shared = bool(frame.head.get("in_segment"))
        memory = segments.input_memory() if self.is_shared else frame.body
        self._memory = weakref.ref(memory)
        self.requests = _decode_requests(frame, memory, all_outputs)
        self.wanted_names = [request._requested_output_names for request in self.requests]

    def is_kept(self) -> bool:
        """Whether the model holds a tensor or an array of this batch; asked when ours are gone."""
        return self.is_shared and self._memory() is not None


def _decode_requests(frame: Frame, memory: Any, all_outputs: frozenset[str]) -> list[InferenceRequest]:
    column = frame.column
    names = frame.head["names"]
    position = 0
    requests = []
    for about in frame.head["requests"]:
        request = InferenceRequest.__new__(InferenceRequest)
        count = column[position]
        position += 1
        inputs = []
        for _ in range(count):
            name, number, offset, size, rank = column[position : position + 5]
            position += 5 + rank
            shape = column[position - rank : position]
            inputs.append(received_tensor(names[name], number, shape, memory, offset, size))
        request._inputs = inputs
        request._model_name = ""
        request._model_version = -1
        if isinstance(about, str):  # most requests have nothing but an id
            request._request_id = about
            request._correlation_id = request._flags = request._timeout = 0
            request._parameters = {}
            request._requested_output_names = all_outputs
        else:
            request._request_id = about["id"]
            request._correlation_id = about["correlation_id"]
            request._flags = about["flags"]
            request._timeout = about["timeout"]
            request._parameters = about["parameters"]
            requested = about["outputs"]
            request._requested_output_names = all_outputs if requested is None else frozenset(requested)
        requests.append(request)
    return requests


class BadResult(Exception):
    """What `execute` returned is not what it must return; the text is the whole message."""


def check_responses(responses: object, request_count: int) -> list[InferenceResponse]:
    """The return value of `execute`, if it answers every request."""
    if responses is None:
        raise BadResult(_UNANSWERED.format(index=0))
    if not isinstance(responses, list):
        raise BadResult(f"Expected a list in the execute return, found type '{type(responses)}'.")
    if len(responses) != request_count:
        raise BadResult(
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            f"InferenceRequest(s) size is:{request_count}, and InferenceResponse(s) size is:{len(responses)}\n"
        )
    for index, response in enumerate(responses):
        if response is None:
            raise BadResult(_UNANSWERED.format(index=index))
        if not isinstance(response, InferenceResponse):
            raise BadResult(
                "Expected an 'InferenceResponse' object in the execute function return list, found type "
                f"'{type(response)}'."
            )
    return responses


_UNANSWERED = (
    "execute returned None for request {index}, but response senders and rescheduling are not supported by this "
    "server yet: return one InferenceResponse per request."
)


class Answer:
    """The EXECUTED frame being made: columns, head, and the tensors' bytes still where the model left them."""

    def __init__(self, responses: list[InferenceResponse], wanted_names: list[Any]) -> None:
        self.column: list[int] = []
        self.head: Head = {}
        self._parts: list[tuple[int, Raw]] = []  # offset and bytes
        self._size = 0
        self._names: dict[str, int] = {}
        for index, (response, names) in enumerate(zip(responses, wanted_names)):
            self._add(index, response, names)
        self.head["names"] = list(self._names)

    def _add(self, index: int, response: InferenceResponse, names: frozenset[str]) -> None:
        if response._parameters:
            self.head.setdefault("parameters", []).append([index, response._parameters])
        error = response._error
        if error is not None:
            self.column.append(-1)
            self.head.setdefault("errors", []).append([index, int(error.code()), error.message()])
            return
        outputs = [tensor for tensor in response._output_tensors if tensor._name in names]
        column = self.column
        column.append(len(outputs))
        for tensor in outputs:
            data = tensor._raw()
            size = len(data)
            shape = tensor._shape
            name = self._names.setdefault(tensor._name, len(self._names))
            column += (name, tensor._number, self._size, size, len(shape), *shape)
            if size:
                self._parts.append((self._size, data))
                self._size = aligned(self._size + size)

    def place(self, segments: Segments, *, can_share: bool) -> tuple[list[Buffer], int]:
        """Copy the outputs into their segment, or return copies of them as the frame's body, with its size.

        Copies, because outputs may be views of the batch's inputs, and would look like inputs that the model keeps.
        """
        if self._size > INLINE_BYTE_SIZE and can_share:
            memory = segments.output_memory(self._size)
            if memory is not None:
                for offset, data in self._parts:
                    memory[offset : offset + len(data)] = data
                self.head["shared"] = self._size
                return [], 0
            self.head["wanted"] = self._size
        body: list[Buffer] = []
        for _, data in self._parts:
            body.append(bytes(data))
            over = len(data) % ALIGNMENT
            if over:
                body.append(_PADDING[over:])
        return body, self._size


def failed_batch(message: str, trace: str = "") -> Head:
    """The head of an EXECUTED frame that fails every request of the batch."""
    return {"failure": {"message": message, "traceback": trace}}
