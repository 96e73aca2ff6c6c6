"""Rules for dynamic batching and sequence batching."""

from __future__ import annotations

import pytest

from protocol.errors import InvalidArgument
from repository.model_config import ModelConfig
from repository.pbtxt import parse_pbtxt
from repository.validation_scheduling import validate_dynamic_batching, validate_sequence_batching


def config_of(text: str) -> ModelConfig:
    return parse_pbtxt(f'name: "m" max_batch_size: 8 {text}', source="test")


ONE_LEVEL = "Only one priority level is allowed when 'preserve_ordering' is true for m"
NO_DELAY = "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("preferred_batch_size: [ 4, 0 ]", "dynamic batching preferred size must be positive for m"),
        ("preferred_batch_size: [ -1 ]", "dynamic batching preferred size must be positive for m"),
        ("preferred_batch_size: [ 8, 9 ]", "dynamic batching preferred size must be <= max batch size for m"),
        ("priority_levels: 3", "default priority level must be in range [1, 3] for m"),
        ("priority_levels: 3 default_priority_level: 4", "default priority level must be in range [1, 3] for m"),
        *(
            (
                f"priority_levels: 2 default_priority_level: 1 priority_queue_policy {{ key: {level} }}",
                "priority queue policy must have priority level in range [1, 2] for m",
            )
            for level in (0, 3)
        ),
        ("preserve_ordering: true priority_levels: 2 default_priority_level: 1", ONE_LEVEL),
        (
            "preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 }",
            NO_DELAY,
        ),
        (
            "preserve_ordering: true priority_levels: 1 default_priority_level: 1 priority_queue_policy "
            "{ key: 1 value { timeout_action: DELAY default_timeout_microseconds: 1 } }",
            NO_DELAY,
        ),
    ],
)
def test_rules_of_dynamic_batching(fields: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        validate_dynamic_batching(config_of(f"dynamic_batching {{ {fields} }}"))
    assert caught.value.message == message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dynamic_batching {}",
        "dynamic_batching { preferred_batch_size: [ 1, 8 ] }",
        "dynamic_batching { priority_levels: 2 default_priority_level: 2 priority_queue_policy { key: 2 } }",
        "dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1 }",
        "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY } }",
        "dynamic_batching { default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 } }",
    ],
)
def test_good_dynamic_batching_passes(text: str) -> None:
    validate_dynamic_batching(config_of(text))


def control(name: str, *controls: str) -> str:
    listed = " ".join(f"control {{ {fields} }}" for fields in controls)
    return f'control_input {{ name: "{name}" {listed} }}'


START = "kind: CONTROL_SEQUENCE_START"
END = "kind: CONTROL_SEQUENCE_END"
CORRID = "kind: CONTROL_SEQUENCE_CORRID"
PAIR = "int32_false_true: [ 0, 1 ]"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(
            (
                f"direct {{ minimum_slot_utilization: {value} }}",
                "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
            )
            for value in ("-0.1", "1.5", "nan")
        ),
        (
            "oldest { preferred_batch_size: 0 }",
            "sequence batching preferred batch size must be positive for m",
        ),
        (
            "oldest { preferred_batch_size: 9 }",
            "sequence batching preferred batch size must be <= max batch size for m",
        ),
        (control("", f"{START} {PAIR}"), "sequence batching control tensor must have a name for m"),
        (
            control("T", f"{START} {PAIR}") + control("T", f"{END} {PAIR}"),
            "sequence batching control tensor 'T' is specified for multiple control kinds for m",
        ),
        (
            control("T", f"{START} {PAIR}", f"{END} {PAIR}"),
            "sequence batching control tensor 'T' is specified for multiple control kinds for m",
        ),
        (
            control("T", f"{START} {PAIR}") + control("U", f"{START} {PAIR}"),
            "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m",
        ),
        (
            control("T", START),
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
            "CONTROL_SEQUENCE_START for m",
        ),
        (
            control("T", f"{END} {PAIR} fp32_false_true: [ 0, 1 ]"),
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            "'bool_false_true' for CONTROL_SEQUENCE_END for m",
        ),
        *(
            (
                control("T", f"{START} {pair}_false_true: {values}"),
                f"sequence batching control '{pair}_false_true' must have exactly 2 entries for "
                "CONTROL_SEQUENCE_START for m",
            )
            for pair, values in (("int32", "[ 0 ]"), ("fp32", "[ 0, 1, 2 ]"), ("bool", "[ true ]"))
        ),
        (
            control("T", f"{CORRID} {PAIR} data_type: TYPE_UINT64"),
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
            "CONTROL_SEQUENCE_CORRID for m",
        ),
        (
            control("T", f"{CORRID} data_type: TYPE_FP32"),
            "unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are TYPE_UINT64, "
            "TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
        ),
    ],
)
def test_rules_of_sequence_batching(fields: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        validate_sequence_batching(config_of(f"sequence_batching {{ {fields} }}"))
    assert caught.value.message == message


def state(fields: str) -> str:
    return f'state {{ input_name: "S" data_type: TYPE_INT32 dims: [ 2, -1 ] {fields} }}'


INITIAL = 'data_type: TYPE_INT32 name: "zero" zero_data: true'
GROWABLE = "use_growable_memory: true use_same_buffer_for_input_output: true"


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (
            state("initial_state {} initial_state {}"),
            "initial_state field for state input 'S' must contain exactly one or zero element. Found '2' elements.",
        ),
        (
            state("initial_state { data_type: TYPE_FP32 }"),
            "The data type used for 'initial_state' field of state 'S' does not match the state data type.",
        ),
        (
            state("initial_state { data_type: TYPE_INT32 }"),
            "Field 'name' must be set when using initial_state for state input 'S'.",
        ),
        (state("") + state(""), "State input name 'S' specified more than once."),
        (
            state(f"initial_state {{ {INITIAL} dims: 2 }}"),
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input "
            "'S'. 1 != 2",
        ),
        (
            state(f"initial_state {{ {INITIAL} dims: [ 2, -1 ] }}"),
            "'initial_state' field for state input name 'S' contains variable dimensions.",
        ),
        (
            state(f"initial_state {{ {INITIAL} dims: [ 3, 1 ] }}"),
            "'initial_state' dim for input name 'S' doesn't match 'state' dim description. 3 != 2",
        ),
        (
            state('initial_state { data_type: TYPE_INT32 name: "zero" dims: [ 2, 1 ] }'),
            "initial_state setting expects state'S' to have state_data set",
        ),
        (
            state("use_growable_memory: true"),
            "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name 'S'.",
        ),
        (
            state(GROWABLE),
            "'use_growable_memory' can only work with KIND_GPU model instances right now. Please either change the "
            "instance type to KIND_GPU or set 'use_growable_memory' to false for state input 'S'.",
        ),
    ],
)
def test_rules_of_states(states: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        validate_sequence_batching(config_of(f"sequence_batching {{ {states} }} instance_group {{ kind: KIND_CPU }}"))
    assert caught.value.message == message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sequence_batching {}",
        "sequence_batching { direct { minimum_slot_utilization: 1 } }",
        "sequence_batching { oldest { preferred_batch_size: [ 4, 8 ] } }",
        f"sequence_batching {{ {control('T', f'{START} {PAIR}')} {control('U', f'{CORRID} data_type: TYPE_STRING')} }}",
        f"sequence_batching {{ {state(f'initial_state {{ {INITIAL} dims: [ 2, 5 ] }}')} }}",
        f"sequence_batching {{ {state(GROWABLE)} }} instance_group {{ kind: KIND_GPU }}",
        f'backend: "onnxruntime" sequence_batching {{ {state(GROWABLE)} }} instance_group {{ kind: KIND_CPU }}',
    ],
)
def test_good_sequence_batching_passes(text: str) -> None:
    validate_sequence_batching(config_of(text))
