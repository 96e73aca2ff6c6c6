"""Between a batch of requests and the worker's frames: a pure codec, which trusts nothing that a worker sends.

Flow: requests → [batch] → EXECUTE frame; EXECUTED frame → [batch] → responses. The format is described in
`worker.trioton_worker.frames`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from backends.interface import Rescheduled
from backends.python.heads import ExecutedHead, ResponseHead
from backends.python.tensor_columns import EncodedFrame, TensorColumn, decode_tensors, frame_tensors
from backends.python.wire import BrokenFrame, Frame
from backends.python.worker.trioton_worker.frames import ERROR, ERROR_KINDS, EXECUTE, LATER, RESCHEDULED
from protocol.errors import KINDS, ServerError
from protocol.messages import InferenceRequest, InferenceResponse

_START_FLAG, _END_FLAG = 1, 2

Outcome: TypeAlias = InferenceResponse | ServerError


def encode_batch(
    requests: Sequence[InferenceRequest],
    all_outputs: frozenset[str],
    *,
    about_batch: Mapping[str, Any],
    input_memory: Callable[[int], memoryview | None],
    unsent: Callable[[], Sequence[str]],
) -> EncodedFrame:
    """The EXECUTE frame of a batch.

    Args:
        about_batch: what its head is to say besides the requests.
        input_memory: shared memory for that many bytes of inputs, which are then copied there; None for the frame.
        unsent: asked afterwards for the names of the segments that go with the frame.
    """
    column = TensorColumn()
    for request in requests:
        column.add(request.inputs)
    memory = input_memory(column.size)
    if memory is not None:
        column.copy_to(memory)
    head = {
        **about_batch,
        "names": column.names,
        "requests": [_about(request, all_outputs) for request in requests],
    }
    if memory is not None:
        head["in_segment"] = True
    segments = unsent()
    if segments:
        head["segments"] = segments
    return column.frame(EXECUTE, head, is_elsewhere=memory is not None)


def _about(request: InferenceRequest, all_outputs: frozenset[str]) -> str | dict[str, Any]:
    """What a request is besides its inputs: its id, where that is all."""
    requested = request.requested_outputs
    is_all = not requested or all_outputs.issubset(requested)
    flags = (_START_FLAG if request.sequence_start else 0) | (_END_FLAG if request.sequence_end else 0)
    context = None if request.trace is None else request.trace.context()
    if is_all and not (
        flags or request.parameters or request.sequence_id or request.timeout_microseconds or context is not None
    ):
        return request.id
    return {
        "id": request.id,
        "correlation_id": request.sequence_id,
        "flags": flags,
        "timeout": request.timeout_microseconds,
        "parameters": request.parameters,
        "outputs": None if is_all else requested,
        "trace": context,
    }


def decode_responses(
    frame: Frame,
    head: ExecutedHead,
    requests: Sequence[InferenceRequest],
    *,
    model_name: str,
    model_version: int,
    output_memory: memoryview | None,
) -> list[Outcome | None]:
    """The answer to each request of a batch that has not failed as a whole; None for one that is answered by its
    response sender.

    Tensors are views of the frame, or copies of what is in `output_memory`, which the next batch writes over.

    Raises:
        BrokenFrame: anything in it points outside, contradicts itself, or does not fit the requests.
    """
    memory = output_memory if head.shared > 0 else frame.body
    if memory is None:
        raise BrokenFrame("its answer is in shared memory that it does not have")
    parameters = dict(head.parameters)
    errors = {index: (code, message) for index, code, message in head.errors}
    if not all(0 <= index < len(requests) for index in (*parameters, *errors)):
        raise BrokenFrame(f"it answers more than {len(requests)} requests")
    numbers: list[int] = frame.column.cast("q").tolist()
    position = 0
    answers: list[Outcome | None] = []
    for index, request in enumerate(requests):
        if position == len(numbers):
            raise BrokenFrame(f"it answers {index} of {len(requests)} requests")
        count = numbers[position]
        position += 1
        if count == ERROR:
            answers.append(error_of(errors.get(index)))
        elif count == LATER:
            answers.append(None)
        elif count == RESCHEDULED:
            answers.append(Rescheduled())
        else:
            outputs, position = decode_tensors(numbers, position, count, head.names, memory, copy=head.shared > 0)
            answers.append(InferenceResponse(model_name, model_version, outputs, request.id, parameters.get(index, {})))
    if position != len(numbers):
        raise BrokenFrame(f"its answer has {len(numbers) - position} numbers too many")
    return answers


def decode_response(
    frame: Frame, head: ResponseHead, request: InferenceRequest, *, model_name: str, model_version: int, is_final: bool
) -> Outcome:
    """The response of a RESPONSE frame that has one; a view of it. Raises BrokenFrame."""
    if head.error is not None:
        return error_of(head.error)
    return InferenceResponse(
        model_name, model_version, frame_tensors(frame, head.names or []), request.id, head.parameters, is_final
    )


def error_of(found: tuple[int, str] | None) -> ServerError:
    if found is None or not 0 <= found[0] < len(ERROR_KINDS):
        raise BrokenFrame("its answer has an error of no known kind")
    return KINDS[ERROR_KINDS[found[0]]](found[1])
