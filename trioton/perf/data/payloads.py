"""Payloads of steps: rows joined to batches, or JSON bodies for the generate extension and OpenAI's routes."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.datatypes import DataType
from protocol.messages import ParameterValue, Tensor, decode_bytes_elements
from trioton.perf.caller import DataError, Payload
from trioton.perf.data.dataset import Step
from trioton.perf.data.inputs import ModelSlots


class Form(enum.StrEnum):
    """What requests are made of."""

    TENSORS = "tensors"
    GENERATE = "generate"  # a JSON object with a member for each input
    OPENAI = "openai"  # the JSON object of a chat or a completion


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectingPayload(Payload):
    """A payload that comes with what the outputs have to be."""

    expected: Mapping[str, Tensor] = field(default_factory=dict)


def tensor_payloads(
    stream: Sequence[Step],
    slots: ModelSlots,
    *,
    batch: int = 1,
    parameters: Mapping[str, ParameterValue] | None = None,
    may_repeat: bool = False,
) -> list[Payload]:
    """The requests of a stream, each of `batch` rows that follow each other; after the last row comes the first.

    `may_repeat` takes one row as often where the next ones have other shapes.

    Raises:
        DataError: the model has no batch dimension, or it has a smaller one; rows of one batch have different shapes.
    """
    if batch > 1 and not slots.is_batching:
        raise DataError(
            f"model '{slots.model}' has no batch dimension (max_batch_size is 0), got the batch size {batch}"
        )
    if batch > 1 and any(step.rows is not None for step in stream):
        raise DataError(f"requests that are sent as they were have their own batch sizes, got the batch size {batch}")
    made = []
    for begin in range(0, len(stream), batch):
        rows = [stream[(begin + index) % len(stream)] for index in range(batch)]
        if may_repeat and len({_shapes(row) for row in rows}) > 1:
            rows = [rows[0]] * batch
        first = rows[0]
        payload = Payload(
            inputs=_inputs(rows, slots),
            parameters={**(parameters or {}), **first.parameters},
            inferences=first.rows if first.rows is not None and slots.is_batching else batch,
        )
        made.append(_expecting(payload, rows, slots))
    return made


def body_payloads(
    stream: Sequence[Step],
    slots: ModelSlots,
    form: Form,
    *,
    members: Mapping[str, Any] | None = None,
    parameters: Mapping[str, ParameterValue] | None = None,
) -> list[Payload]:
    """A JSON body for each step: that which it has, else a member for each of its tensors. It gets
    `members` where it has no such, and `parameters` in any case.

    Raises:
        DataError: a route of OpenAI's, and the data has tensors.
    """
    made = []
    for step in stream:
        body = step.body
        if body is None:
            if form is Form.OPENAI:
                raise DataError("OpenAI's routes take JSON bodies: give them as 'payload' of each entry of the data")
            body = {name: _member(tensor) for name, tensor in step.tensors.items()}
        made.append(Payload(body={**(members or {}), **body, **(parameters or {})}))
    return made


def _inputs(rows: Sequence[Step], slots: ModelSlots) -> list[Tensor]:
    first = rows[0]
    if first.rows is not None or not slots.is_batching:
        return list(first.tensors.values())
    names = first.tensors.keys()
    for row in rows:
        if row.tensors.keys() != names:
            odd = sorted(row.tensors.keys() ^ names)[0]
            raise DataError(
                f"optional input '{odd}' is in some rows of a batch only: give it in all of them, or in none"
            )
    return [_joined(name, [row.tensors[name] for row in rows], slots) for name in names]


def _expecting(payload: Payload, rows: Sequence[Step], slots: ModelSlots) -> Payload:
    """With the outputs of all rows, where all say theirs."""
    names = rows[0].expected.keys()
    if not names or any(row.expected.keys() != names for row in rows):
        return payload
    has_rows = slots.is_batching and rows[0].rows is None
    expected = {name: _stacked([row.expected[name] for row in rows], has_rows) for name in names}
    return ExpectingPayload(
        inputs=payload.inputs, parameters=payload.parameters, inferences=payload.inferences, expected=expected
    )


def _stacked(tensors: Sequence[Tensor], has_rows: bool) -> Tensor:
    first = tensors[0]
    if not has_rows:
        return first
    data = b"".join(tensor.data for tensor in tensors)
    return Tensor(first.name, first.datatype, (len(tensors), *first.shape), data)


def _joined(name: str, tensors: Sequence[Tensor], slots: ModelSlots) -> Tensor:
    """The rows of a batch as one tensor; a single one is not copied. A shape tensor is that of the first row."""
    first = tensors[0]
    if slots.input(name).is_shape_tensor:
        return first
    for other in tensors:
        if other.shape != first.shape:
            raise DataError(
                f"input '{name}' has the shapes {list(first.shape)} and {list(other.shape)} in rows of one batch: "
                "rows of a batch must be alike"
            )
    data = first.data if len(tensors) == 1 else b"".join(tensor.data for tensor in tensors)
    return Tensor(name, first.datatype, (len(tensors), *first.shape), data)


def _shapes(step: Step) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, tensor.shape) for name, tensor in step.tensors.items())


def _member(tensor: Tensor) -> Any:
    """As the generate extension takes it: a list, or a single value."""
    if tensor.datatype is DataType.BYTES:
        values: list[Any] = [text.decode(errors="replace") for text in decode_bytes_elements(tensor.data)]
    else:
        values = tensor.as_numpy().reshape(-1).tolist()
    return values[0] if len(values) == 1 else values
