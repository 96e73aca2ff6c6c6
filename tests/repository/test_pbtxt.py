"""`config.pbtxt` to a typed configuration and back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from repository.model_config import (
    AllPolicy,
    InitialState,
    InstanceKind,
    LatestPolicy,
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelInstanceGroup,
    ModelParameter,
    ModelQueuePolicy,
    ModelTensorReshape,
    ModelVersionPolicy,
    TimeoutAction,
)
from repository.pbtxt import format_pbtxt, parse_pbtxt
from tests.repository.strategies import model_configs


@settings(deadline=None)
@given(model_configs())
def test_formatted_text_parses_back_to_an_equal_configuration(config: ModelConfig) -> None:
    assert parse_pbtxt(format_pbtxt(config), source="test") == config


@settings(deadline=None)
@given(st.text() | st.text(alphabet='name:{}[]"\\123 \n,<>;#input'))
def test_any_text_parses_or_is_the_clients_mistake(text: str) -> None:
    try:
        parse_pbtxt(text, source="test")
        error = None
    except InvalidArgument as exc:
        error = exc.message
    assert error is None or error.startswith("test:")


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("", ModelConfig()),
        ('# a comment\nname: "a"; max_batch_size: 8,', ModelConfig(name="a", max_batch_size=8)),
        ("version_policy { all {} }", ModelConfig(version_policy=ModelVersionPolicy(all=AllPolicy()))),
        ("version_policy { latest {} }", ModelConfig(version_policy=ModelVersionPolicy(latest=LatestPolicy()))),
        ("input { data_type: 11 }", ModelConfig(input=(ModelInput(data_type=DataType.FP32),))),
        ("input { reshape {} }", ModelConfig(input=(ModelInput(reshape=ModelTensorReshape()),))),
        (
            "dynamic_batching { priority_queue_policy { key: 18446744073709551615 value { timeout_action: DELAY } } }",
            ModelConfig(
                dynamic_batching=ModelDynamicBatching(
                    priority_queue_policy={2**64 - 1: ModelQueuePolicy(timeout_action=TimeoutAction.DELAY)}
                )
            ),
        ),
        (
            "instance_group [ { kind: KIND_CPU }, { count: 2 } ]",
            ModelConfig(
                instance_group=(ModelInstanceGroup(kind=InstanceKind.CPU), ModelInstanceGroup(count=2)),
            ),
        ),
        (
            'parameters { key: "a" value { string_value: "\\303\\251" } } parameters { key: "b" }',
            ModelConfig(parameters={"a": ModelParameter("é"), "b": ModelParameter()}),
        ),
    ],
)
def test_parses(text: str, config: ModelConfig) -> None:
    assert parse_pbtxt(text, source="test") == config


def test_a_false_member_of_a_oneof_is_not_an_absent_one() -> None:
    text = "sequence_batching { state { initial_state { zero_data: false } } }"
    parsed = parse_pbtxt(text, source="test").sequence_batching
    assert parsed is not None
    assert parsed.state[0].initial_state == (InitialState(zero_data=False),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'name: "a"\nbackends: "python"',
            'm/config.pbtxt:2:1: Message type "inference.ModelConfig" has no field named "backends". '
            "Did you mean 'backend'?",
        ),
        (
            "input [\n  { data_type: TYPE_FLOAT } ]",
            'm/config.pbtxt:2:16: Enum type "inference.DataType" has no value named TYPE_FLOAT. '
            "Did you mean 'TYPE_FP32'?",
        ),
        (
            "dynamic_batching {}\nsequence_batching {}",
            'm/config.pbtxt:2:1: Field "sequence_batching" is specified along with field "dynamic_batching", another '
            'member of oneof "scheduling_choice" for message type "inference.ModelConfig".',
        ),
        ("max_batch_size: 99999999999", "m/config.pbtxt:1:17: Value out of range: 99999999999"),
        ("max_batch_size: eight", "m/config.pbtxt:1:17: Couldn't parse integer: eight"),
        (
            'name: "a"\nname: "b"',
            'm/config.pbtxt:2:7: Message type "inference.ModelConfig" should not have multiple "name" fields.',
        ),
        ("input {", 'm/config.pbtxt:1:7: Expected "}".'),
        (
            "input { data_type: 99 }",
            "m/config.pbtxt: the enum of field 'input[0].data_type' has no value of the given number",
        ),
    ],
)
def test_a_mistake_is_reported_with_file_line_and_column(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_pbtxt(text, source="m/config.pbtxt")
    assert caught.value.message == message


def test_deep_nesting_is_a_mistake_of_the_text() -> None:
    with pytest.raises(InvalidArgument, match=r"test:1:\d+: "):
        parse_pbtxt("input " + "{" * 100_000, source="test")


def test_a_value_that_does_not_fit_its_field_cannot_be_formatted() -> None:
    with pytest.raises(InvalidArgument, match="model configuration of 'a' cannot be written"):
        format_pbtxt(ModelConfig(name="a", max_batch_size=2**31))
