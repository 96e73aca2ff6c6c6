"""Codec of batches: requests to EXECUTE frames, EXECUTED and RESPONSE frames to responses. Pure; validates everything.

Flow: requests → [batch] → EXECUTE frame; EXECUTED frame → [batch] → responses. The format is described in
`worker.trioton_worker.frames`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from backends.interface import Rescheduled
from backends.python.wire.frames import BrokenFrame, Frame, decode_head
from backends.python.wire.heads import ExecutedHead, ResponseHead
from backends.python.wire.schemas import Schemas
from backends.python.wire.tensor_columns import EncodedFrame, SharedMemory, TensorColumn, TensorReader, frame_tensors
from backends.python.worker.trioton_worker.frames import (
    ERROR,
    ERROR_KINDS,
    EXECUTE,
    LATER,
    NO_SLOT,
    RESCHEDULED,
)
from protocol.errors import KINDS, ServerError
from protocol.messages import InferenceRequest, InferenceResponse, ParameterValue

_START_FLAG, _END_FLAG = 1, 2
# The column of EXECUTED in front of places and runs: the batch, whether inputs are kept, the bytes of outputs in the
# segment, how many of them have places.
_BEFORE_PLACES = 4
_NOTHING = ExecutedHead()
_NOWHERE: Mapping[int, int] = {}

Outcome: TypeAlias = InferenceResponse | ServerError


def encode_batch(
    number: int,
    requests: Sequence[InferenceRequest],
    inputs: TensorColumn,
    all_outputs: frozenset[str],
    *,
    about_batch: dict[str, Any],
    input_slot: int = NO_SLOT,
    output_slot: int = NO_SLOT,
) -> EncodedFrame:
    """The EXECUTE frame of a batch. `about_batch` is what its head is to say besides the requests; the inputs are not
    in it if they are in a segment, of whose slot it tells."""
    about = about_requests(requests, all_outputs)
    if about:
        about_batch["requests"] = about
    before = (number, input_slot, output_slot)
    return inputs.frame(EXECUTE, about_batch, before=before, is_elsewhere=input_slot != NO_SLOT)


def about_requests(
    requests: Iterable[InferenceRequest], all_outputs: frozenset[str]
) -> list[tuple[int, str | dict[str, Any]]]:
    """The head fields of the requests, besides their inputs, by index of each that needs any: mostly none. Only the id,
    where that is all."""
    found: list[tuple[int, str | dict[str, Any]]] = []
    for index, request in enumerate(requests):
        requested = request.requested_outputs
        is_all = not requested or all_outputs.issubset(requested)
        if not is_all or (
            request.sequence_id
            or request.parameters
            or request.timeout_microseconds
            or request.trace is not None
            or request.sequence_start
            or request.sequence_end
        ):
            found.append((index, _about(request, is_all=is_all)))
        elif request.id:
            found.append((index, request.id))
    return found


def _about(request: InferenceRequest, *, is_all: bool) -> dict[str, Any]:
    return {
        "id": request.id,
        "correlation_id": request.sequence_id,
        "flags": (_START_FLAG if request.sequence_start else 0) | (_END_FLAG if request.sequence_end else 0),
        "timeout": request.timeout_microseconds,
        "parameters": request.parameters,
        "outputs": None if is_all else request.requested_outputs,
        "trace": None if request.trace is None else request.trace.context(),
    }


class Executed(msgspec.Struct, eq=False):
    """An EXECUTED frame, its tensors not looked at yet: `shared` bytes of them are in the outputs' segment, but for
    those that are `placed`: where each would begin there, and where it does in that of the inputs. `numbers` are its
    column, whose runs begin at `runs_at`."""

    batch: int
    is_kept: bool
    shared: int
    placed: Mapping[int, int]
    head: ExecutedHead
    numbers: Sequence[int]
    runs_at: int
    frame: Frame


def decode_executed(frame: Frame) -> Executed:
    """Raises BrokenFrame."""
    numbers: list[int] = frame.column.cast("q").tolist()
    runs_at = _BEFORE_PLACES + 2 * numbers[3] if len(numbers) >= _BEFORE_PLACES else -1
    if not _BEFORE_PLACES <= runs_at <= len(numbers):
        raise BrokenFrame(f"its answer has {len(numbers)} numbers, too few for what they announce")
    placed: Mapping[int, int] = _NOWHERE
    if runs_at > _BEFORE_PLACES:
        placed = dict(zip(numbers[_BEFORE_PLACES:runs_at:2], numbers[_BEFORE_PLACES + 1 : runs_at : 2], strict=True))
    head = decode_head(frame, ExecutedHead) if len(frame.head) else _NOTHING
    return Executed(numbers[0], numbers[1] != 0, numbers[2], placed, head, numbers, runs_at, frame)


def decode_responses(
    executed: Executed,
    requests: Sequence[InferenceRequest],
    *,
    schemas: Schemas,
    model_name: str,
    model_version: int,
    outputs: SharedMemory | None,
    inputs: SharedMemory | None = None,
) -> list[Outcome | None]:
    """The answer to each request of a batch that has not failed as a whole; None for one that is answered by its
    response sender.

    Tensors are in the frame, or in `outputs`, or have stayed in `inputs`; they are views, but of strings that the
    worker could change, and of what the next batch writes over.

    Raises:
        BrokenFrame: anything in it points outside, contradicts itself, or does not fit the requests.
    """
    head, is_shared = executed.head, executed.shared > 0
    memory, is_lent = executed.frame.body, True
    if is_shared:
        if outputs is None:
            raise BrokenFrame("its answer is in shared memory that it does not have")
        memory, is_lent = outputs.view, outputs.is_lent
    parameters: dict[int, dict[str, ParameterValue]] = {}
    errors: dict[int, tuple[int, str]] = {}
    if head is not _NOTHING:
        parameters = dict(head.parameters)
        if head.errors:
            errors = {index: (code, message) for index, code, message in head.errors}
        named = (*parameters, *errors)
        if named and not all(0 <= index < len(requests) for index in named):
            raise BrokenFrame(f"it answers more than {len(requests)} requests")
    numbers = executed.numbers
    reader = TensorReader(numbers, executed.frame.schemas, schemas, memory, executed.runs_at, is_shared, is_lent)
    if executed.placed and not executed.is_kept:
        reader.note_placed(executed.placed, inputs)
    answers: list[Outcome | None] = []
    while reader.position < len(numbers):
        length, count = reader.next_run()
        index = len(answers)
        if not 0 < count <= len(requests) - index:
            raise BrokenFrame(f"it answers {index} and {count} of {len(requests)} requests")
        if length == ERROR:
            answers += [error_of(errors.get(each)) for each in range(index, index + count)]
        elif length == LATER:
            answers += [None] * count
        elif length == RESCHEDULED:
            answers += [Rescheduled() for _ in range(count)]
        else:
            for tensors in reader.read(length, count):
                answers.append(
                    InferenceResponse(
                        model_name, model_version, tensors, requests[index].id, parameters.get(index) or {}
                    )
                )
                index += 1
    if len(answers) != len(requests):
        raise BrokenFrame(f"it answers {len(answers)} of {len(requests)} requests")
    return answers


def decode_response(
    frame: Frame,
    head: ResponseHead,
    request: InferenceRequest,
    *,
    schemas: Schemas,
    model_name: str,
    model_version: int,
    is_final: bool,
) -> Outcome | None:
    """The response of a RESPONSE frame, a view of it; None where it has none. Raises BrokenFrame."""
    if head.error is not None:
        return error_of(head.error)
    outputs = frame_tensors(frame, schemas)
    if outputs is None:
        return None
    return InferenceResponse(model_name, model_version, outputs, request.id, head.parameters, is_final)


def error_of(found: tuple[int, str] | None) -> ServerError:
    if found is None or not 0 <= found[0] < len(ERROR_KINDS):
        raise BrokenFrame("its answer has an error of no known kind")
    return KINDS[ERROR_KINDS[found[0]]](found[1])
