"""Sequence parameters in ensembles: which sequence id and flags each step's request and the response carry.

A step's response may carry the parameters `sequence_id`, `sequence_start` and `sequence_end`; they then hold for the
steps that read its tensors, and for the ensemble's response, which otherwise says what the request said. Source:
Triton's ensemble scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest, ParameterValue

_NAMES = frozenset({"sequence_id", "sequence_start", "sequence_end"})


@dataclass(frozen=True, slots=True)
class SequenceValues:
    """A request's sequence id and flags."""

    id: int | str
    is_start: bool
    is_end: bool


def sequence_of(request: InferenceRequest) -> SequenceValues:
    """The values of the client's request."""
    return SequenceValues(request.sequence_id, request.sequence_start, request.sequence_end)


def sequence_override(
    parameters: Mapping[str, ParameterValue], request: InferenceRequest, before: SequenceValues | None
) -> SequenceValues | None:
    """The values that hold after a step that answered `request` with these parameters; `before` are those that held for
    it, if they were not the client's. A step that sets any of them sets all: a flag that it omits is off.

    Raises:
        InvalidArgument: a parameter of the wrong type.
    """
    if not parameters or _NAMES.isdisjoint(parameters):
        return before
    correlation_id = parameters.get("sequence_id", request.sequence_id)
    if isinstance(correlation_id, bool) or not isinstance(correlation_id, int | str):
        raise InvalidArgument(
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING"
        )
    return SequenceValues(
        correlation_id,
        _flag(parameters, "sequence_start"),
        _flag(parameters, "sequence_end"),
    )


def sequence_parameters(values: SequenceValues) -> dict[str, ParameterValue]:
    """The parameters of the ensemble's response."""
    return {"sequence_id": values.id, "sequence_start": values.is_start, "sequence_end": values.is_end}


def _flag(parameters: Mapping[str, ParameterValue], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise InvalidArgument(f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL")
    return value
