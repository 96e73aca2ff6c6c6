"""Between a batch of requests and the worker's frames: a pure codec, which trusts nothing that a worker sends.

Flow: requests → [batch] → EXECUTE frame; EXECUTED frame → [batch] → responses. The format is described in
`worker.trioton_worker.frames`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from backends.python.wire import BrokenFrame, ExecutedHead, Frame
from backends.python.worker.trioton_worker.frames import ALIGNMENT, ERROR_KINDS, EXECUTE, aligned, pack
from protocol.datatypes import DataType
from protocol.errors import KINDS, ServerError
from protocol.messages import Buffer, InferenceRequest, InferenceResponse, Tensor

_DATATYPES = {datatype.number: datatype for datatype in DataType if datatype is not DataType.INVALID}
_START_FLAG, _END_FLAG = 1, 2
_HIGHEST_RANK = 64  # numpy's
_PADDING = bytes(ALIGNMENT)
# Copied by numpy, which frees the interpreter's lock meanwhile.
_LARGE = 1 << 20


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """An EXECUTE frame: `start` and then `body`."""

    start: bytes
    body: Sequence[Buffer]


def encode_batch(
    requests: Sequence[InferenceRequest],
    all_outputs: frozenset[str],
    *,
    input_memory: Callable[[int], memoryview | None],
    unsent: Callable[[], Sequence[str]],
) -> EncodedBatch:
    """The EXECUTE frame of a batch.

    Args:
        input_memory: shared memory for that many bytes of inputs, which are then copied there; None for the frame.
        unsent: asked afterwards for the names of the segments that go with the frame.
    """
    column: list[int] = []
    names: dict[str, int] = {}
    parts: list[tuple[int, Buffer, int]] = []
    position = 0
    for request in requests:
        column.append(len(request.inputs))
        for tensor in request.inputs:
            size = tensor.byte_size
            shape = tensor.shape
            name = names.setdefault(tensor.name, len(names))
            column += (name, tensor.datatype.number, position, size, len(shape))
            column += shape
            if size:
                parts.append((position, tensor.data, size))
                position = aligned(position + size)
    memory = input_memory(position)
    body: list[Buffer] = []
    if memory is not None:
        for offset, data, size in parts:
            if size > _LARGE:
                np.copyto(np.frombuffer(memory, np.uint8, size, offset), np.frombuffer(data, np.uint8))
            else:
                memory[offset : offset + size] = _flat(data)
        position = 0
    else:
        for _, data, size in parts:
            body.append(data)
            if size % ALIGNMENT:
                body.append(_PADDING[size % ALIGNMENT :])
    head = {
        "names": list(names),
        "requests": [_about(request, all_outputs) for request in requests],
        "in_segment": memory is not None,
        "segments": unsent(),
    }
    return EncodedBatch(pack(EXECUTE, msgspec.json.encode(head), array("q", column).tobytes(), position), body)


def _about(request: InferenceRequest, all_outputs: frozenset[str]) -> str | dict[str, Any]:
    """What a request is besides its inputs: its id, where that is all."""
    requested = request.requested_outputs
    is_all = not requested or all_outputs.issubset(requested)
    flags = (_START_FLAG if request.sequence_start else 0) | (_END_FLAG if request.sequence_end else 0)
    if is_all and not (flags or request.parameters or request.sequence_id or request.timeout_microseconds):
        return request.id
    return {
        "id": request.id,
        "correlation_id": request.sequence_id,
        "flags": flags,
        "timeout": request.timeout_microseconds,
        "parameters": request.parameters,
        "outputs": None if is_all else requested,
    }


def _flat(data: Buffer) -> Buffer:
    """The same bytes in a form that a view of bytes takes."""
    if isinstance(data, memoryview) and (data.format != "B" or data.ndim != 1):
        return data.cast("B") if data.nbytes else b""
    return data


def decode_responses(
    frame: Frame,
    head: ExecutedHead,
    requests: Sequence[InferenceRequest],
    *,
    model_name: str,
    model_version: int,
    output_memory: memoryview | None,
) -> list[InferenceResponse | ServerError]:
    """The answer to each request of a batch that has not failed as a whole.

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
    answers: list[InferenceResponse | ServerError] = []
    for index, request in enumerate(requests):
        if position == len(numbers):
            raise BrokenFrame(f"it answers {index} of {len(requests)} requests")
        count = numbers[position]
        position += 1
        if count == -1:
            answers.append(_error(errors.get(index)))
            continue
        outputs: list[Tensor] = []
        while len(outputs) != count:  # a count that cannot be runs out of numbers
            tensor, position = _decode_tensor(numbers, position, head.names, memory, copy=head.shared > 0)
            outputs.append(tensor)
        answers.append(InferenceResponse(model_name, model_version, outputs, request.id, parameters.get(index, {})))
    if position != len(numbers):
        raise BrokenFrame(f"its answer has {len(numbers) - position} numbers too many")
    return answers


def _error(found: tuple[int, str] | None) -> ServerError:
    if found is None or not 0 <= found[0] < len(ERROR_KINDS):
        raise BrokenFrame("its answer has an error of no known kind")
    return KINDS[ERROR_KINDS[found[0]]](found[1])


def _decode_tensor(
    numbers: list[int], position: int, names: list[str], memory: memoryview, *, copy: bool
) -> tuple[Tensor, int]:
    """The tensor that is described from `position` on, and the position behind it."""
    shape_start = position + 5
    if shape_start > len(numbers):
        raise BrokenFrame(f"its answer has {len(numbers)} numbers, too few for what they announce")
    name, number, offset, size, rank = numbers[position:shape_start]
    end = shape_start + rank
    if not 0 <= rank <= _HIGHEST_RANK or end > len(numbers):
        raise BrokenFrame(f"its output has {rank} dimensions")
    shape = tuple(numbers[shape_start:end])
    datatype = _DATATYPES.get(number)
    if datatype is None or not 0 <= name < len(names):
        raise BrokenFrame(f"its output has the name {name} of {len(names)} and the datatype {number}")
    if offset < 0 or size < 0 or offset + size > len(memory) or (shape and min(shape) < 0):
        raise BrokenFrame(
            f"its output '{names[name]}' of shape {list(shape)} is at {offset}, {size} bytes long, in a memory of "
            f"{len(memory)} bytes"
        )
    data: Buffer = memory[offset : offset + size]
    if copy:
        data = np.frombuffer(data, np.uint8).copy().data if size > _LARGE else bytes(data)
    count = math.prod(shape)
    fits = _holds_elements(data, count) if datatype is DataType.BYTES else size == count * datatype.itemsize
    if not fits:
        raise BrokenFrame(
            f"its output '{names[name]}' of datatype {datatype.name} and shape {list(shape)} has {size} bytes"
        )
    return Tensor(names[name], datatype, shape, data), end


def _holds_elements(data: Buffer, count: int) -> bool:
    """Whether the raw layout of a BYTES tensor is sound and has `count` elements."""
    end = len(data)
    position = 0
    while position + 4 <= end:
        position += 4 + int.from_bytes(data[position : position + 4], "little")
        count -= 1
    return position == end and count == 0
