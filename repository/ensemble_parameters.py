"""The `parameters` of an ensemble that the server interprets: step conditions, and the byte budget.

Both are ours; Triton has no such keys. `repository.validation_ensemble` judges them, `actors.ensemble.graph` and the
ensemble follow them.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import InvalidArgument
from repository.model_config import EnsembleStep, ModelConfig

CONDITION_PREFIX = "condition:"
MAX_INFLIGHT_BYTES = "max_inflight_bytes"
DEFAULT_MAX_INFLIGHT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class StepCondition:
    """A step runs only where the BOOL tensor `tensor` is true, or false if `is_negated`; else it is skipped."""

    tensor: str
    is_negated: bool = False


def step_conditions(config: ModelConfig) -> dict[int, StepCondition]:
    """The conditions by the steps' indexes: `condition:<index or model name>` with the value `T` or `!T`.

    Raises:
        InvalidArgument: an entry that names no step, or more than one, or no tensor.
    """
    steps = () if config.ensemble_scheduling is None else config.ensemble_scheduling.step
    conditions: dict[int, StepCondition] = {}
    for key, parameter in sorted(config.parameters.items()):  # a map of protobuf has no order of its own
        if not key.startswith(CONDITION_PREFIX):
            continue
        where = f"parameter '{key}' of ensemble '{config.name}'"
        index = _step_index(key.removeprefix(CONDITION_PREFIX), steps, where)
        if index in conditions:
            raise InvalidArgument(f"{where} gives step {index} a second condition")
        value = parameter.string_value.strip()
        tensor = value.removeprefix("!").strip()
        if not tensor:
            raise InvalidArgument(f"{where} must name an ensemble tensor, as 'T' or '!T', got '{value}'")
        conditions[index] = StepCondition(tensor, is_negated=value.startswith("!"))
    return conditions


def max_inflight_bytes(config: ModelConfig) -> int:
    """How many bytes of intermediate tensors may be held by all requests together; 0 for no limit.

    Raises:
        InvalidArgument: the parameter is no such number.
    """
    text = config.parameter(MAX_INFLIGHT_BYTES, str(DEFAULT_MAX_INFLIGHT_BYTES)).strip()
    if not (text.isascii() and text.isdigit()):
        raise InvalidArgument(
            f"parameter '{MAX_INFLIGHT_BYTES}' of ensemble '{config.name}' must be a number of bytes (0 for no limit), "
            f"got '{text}'"
        )
    return int(text)


def _step_index(name: str, steps: tuple[EnsembleStep, ...], where: str) -> int:
    if name.isascii() and name.isdigit():
        if int(name) < len(steps):
            return int(name)
        raise InvalidArgument(f"{where} names step {name}, but there are {len(steps)}, counted from 0")
    found = [index for index, step in enumerate(steps) if step.model_name == name]
    if not found:
        raise InvalidArgument(f"{where} names neither a step's index nor its model")
    if len(found) > 1:
        raise InvalidArgument(
            f"{where} names a model that steps {', '.join(map(str, found))} have in common: give the step's index"
        )
    return found[0]
