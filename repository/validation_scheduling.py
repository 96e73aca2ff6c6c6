"""Validation rules for dynamic batching and sequence batching.

Part of `repository.validation`. Source: Triton's `ModelDynamicBatching`, `ModelSequenceBatching`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from repository.model_config import (
    Control,
    ControlKind,
    InstanceKind,
    ModelConfig,
    ModelDynamicBatching,
    ModelQueuePolicy,
    ModelSequenceBatching,
    SequenceState,
    TimeoutAction,
)

# Backends that hold the states of their instances themselves, on the CPU too; ours, where Triton's do on the GPU alone.
_GROW_ON_CPU = frozenset({"onnxruntime"})
_CORRELATION_ID_TYPES = (DataType.UINT64, DataType.INT64, DataType.UINT32, DataType.INT32, DataType.BYTES)


def validate_dynamic_batching(config: ModelConfig) -> None:
    """Judge `dynamic_batching`, where there is one.

    Raises:
        InvalidArgument: the first rule that is broken.
    """
    batching = config.dynamic_batching
    if batching is None:
        return
    _validate_preferred(config, batching.preferred_batch_size, "dynamic batching preferred size")
    _validate_priorities(config, batching)
    if batching.preserve_ordering:
        if batching.priority_levels > 1:
            raise _invalid(config, "Only one priority level is allowed when 'preserve_ordering' is true")
        default = [] if batching.default_queue_policy is None else [batching.default_queue_policy]
        if any(_delays(policy) for policy in (*default, *batching.priority_queue_policy.values())):
            raise _invalid(config, "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true")


def validate_sequence_batching(config: ModelConfig) -> None:
    """Judge `sequence_batching`, where there is one.

    Raises:
        InvalidArgument: the first rule that is broken.
    """
    batching = config.sequence_batching
    if batching is None:
        return
    if batching.direct is not None and not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        raise _invalid(config, "sequence batching minimum slot utilization must be in range (0.0, 1.0]")
    if batching.oldest is not None:
        _validate_preferred(config, batching.oldest.preferred_batch_size, "sequence batching preferred batch size")
    _validate_controls(config, batching)
    _validate_states(config, batching.state)


def _validate_preferred(config: ModelConfig, sizes: Iterable[int], what: str) -> None:
    for size in sizes:
        if size <= 0:
            raise _invalid(config, f"{what} must be positive")
        if size > config.max_batch_size:
            raise _invalid(config, f"{what} must be <= max batch size")


def _validate_priorities(config: ModelConfig, batching: ModelDynamicBatching) -> None:
    levels = batching.priority_levels
    if levels == 0:
        return
    if not 1 <= batching.default_priority_level <= levels:
        raise _invalid(config, f"default priority level must be in range [1, {levels}]")
    if not all(1 <= level <= levels for level in batching.priority_queue_policy):
        raise _invalid(config, f"priority queue policy must have priority level in range [1, {levels}]")


def _delays(policy: ModelQueuePolicy) -> bool:
    return policy.timeout_action is TimeoutAction.DELAY and policy.default_timeout_microseconds != 0


def _validate_controls(config: ModelConfig, batching: ModelSequenceBatching) -> None:
    names: set[str] = set()
    kinds: set[ControlKind] = set()
    for control_input in batching.control_input:
        name = control_input.name
        if not name:
            raise _invalid(config, "sequence batching control tensor must have a name")
        if name in names or len({control.kind for control in control_input.control}) > 1:
            raise _invalid(config, f"sequence batching control tensor '{name}' is specified for multiple control kinds")
        names.add(name)
        for control in control_input.control:
            if control.kind in kinds:
                raise _invalid(config, f"sequence batching specifies multiple {control.kind.value} tensors")
            kinds.add(control.kind)
            _validate_control(config, control)


def _validate_control(config: ModelConfig, control: Control) -> None:
    pairs: dict[str, Sequence[object]] = {
        "int32_false_true": control.int32_false_true,
        "fp32_false_true": control.fp32_false_true,
        "bool_false_true": control.bool_false_true,
    }
    given = [field for field, values in pairs.items() if values]
    kind = control.kind.value
    if control.kind is ControlKind.SEQUENCE_CORRID:
        if given:
            raise _invalid(
                config,
                "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or "
                f"'bool_false_true' for {kind}",
            )
        if control.data_type not in _CORRELATION_ID_TYPES:
            raise InvalidArgument(
                f"unexpected data type for control {kind} for {config.name}. Allowed data types are TYPE_UINT64, "
                "TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
            )
        return
    if not given:
        raise _invalid(
            config,
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' "
            f"for {kind}",
        )
    if len(given) > 1:
        raise _invalid(
            config,
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            f"'bool_false_true' for {kind}",
        )
    if len(pairs[given[0]]) != 2:
        raise _invalid(config, f"sequence batching control '{given[0]}' must have exactly 2 entries for {kind}")


def _validate_states(config: ModelConfig, states: Sequence[SequenceState]) -> None:
    names: set[str] = set()
    for state in states:
        name = state.input_name
        if name in names:
            raise InvalidArgument(f"State input name '{name}' specified more than once.")
        names.add(name)
        _validate_initial_state(state)
        if state.use_growable_memory:
            if not state.use_same_buffer_for_input_output:
                raise InvalidArgument(
                    "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name "
                    f"'{name}'."
                )
            if config.backend not in _GROW_ON_CPU and any(
                group.kind is not InstanceKind.GPU for group in config.instance_group
            ):
                raise InvalidArgument(
                    "'use_growable_memory' can only work with KIND_GPU model instances right now. Please either change "
                    "the instance type to KIND_GPU or set 'use_growable_memory' to false for state input "
                    f"'{name}'."
                )


def _validate_initial_state(state: SequenceState) -> None:
    name = state.input_name
    if len(state.initial_state) > 1:
        raise InvalidArgument(
            f"initial_state field for state input '{name}' must contain exactly one or zero element. Found "
            f"'{len(state.initial_state)}' elements."
        )
    for initial in state.initial_state:
        if initial.data_type is not state.data_type:
            raise InvalidArgument(
                f"The data type used for 'initial_state' field of state '{name}' does not match the state data type."
            )
        if not initial.name:
            raise InvalidArgument(f"Field 'name' must be set when using initial_state for state input '{name}'.")
        if len(initial.dims) != len(state.dims):
            raise InvalidArgument(
                "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input "
                f"'{name}'. {len(initial.dims)} != {len(state.dims)}"
            )
        for dim, state_dim in zip(initial.dims, state.dims, strict=True):
            if dim == -1:
                raise InvalidArgument(
                    f"'initial_state' field for state input name '{name}' contains variable dimensions."
                )
            if state_dim not in (-1, dim):
                raise InvalidArgument(
                    f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. "
                    f"{dim} != {state_dim}"
                )
        if initial.zero_data is None and initial.data_file is None:
            # The missing blank is Triton's.
            raise InvalidArgument(f"initial_state setting expects state'{name}' to have state_data set")


def _invalid(config: ModelConfig, text: str) -> InvalidArgument:
    return InvalidArgument(f"{text} for {config.name}")
