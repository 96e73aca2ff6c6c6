"""The JSON form: as Triton's config endpoint prints it, and as overrides give it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from repository.json_form import from_json_form, to_json_form
from repository.model_config import (
    GraphSpec,
    GraphSpecLowerBound,
    GraphSpecShape,
    InitialState,
    InstanceKind,
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelInstanceGroup,
    ModelOptimizationPolicy,
    ModelOutput,
    ModelParameter,
    ModelQueuePolicy,
    ModelSequenceBatching,
    ModelTensorReshape,
    OptimizationCuda,
    SecondaryDevice,
    SequenceState,
)
from tests.repository.strategies import model_configs


def refusal(text: bytes) -> str | None:
    """The error's text, or None where the text is read."""
    try:
        from_json_form(text)
    except InvalidArgument as exc:
        return exc.message
    return None


@settings(deadline=None)
@given(model_configs())
def test_the_json_form_reads_back_to_an_equal_configuration(config: ModelConfig) -> None:
    assert from_json_form(msgspec.json.encode(to_json_form(config))) == config


@settings(deadline=None)
@given(model_configs())
def test_the_json_form_holds_plain_json_values_only(config: ModelConfig) -> None:
    form = to_json_form(config)
    assert json.loads(json.dumps(form)) == form


@settings(deadline=None)
@given(
    st.binary() | st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x)).map(msgspec.json.encode)
)
def test_any_bytes_are_read_or_are_the_clients_mistake(text: bytes) -> None:
    error = refusal(text)
    assert error is None or error.startswith("Invalid config override: ")


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(ModelConfig.__struct_fields__),
        st.none()
        | st.integers()
        | st.floats()
        | st.text()
        | st.lists(
            st.dictionaries(
                st.sampled_from(["name", "dims", "kind", "data_type", "reshape"]), st.integers() | st.text()
            )
        ),
    )
)
def test_wrong_values_are_the_clients_mistake(data: object) -> None:
    error = refusal(msgspec.json.encode(data))
    assert error is None or error.startswith("Invalid config override: ")


def test_scalars_are_printed_at_their_default_and_unset_messages_are_left_out() -> None:
    form = to_json_form(ModelConfig(name="m", input=(ModelInput(name="IN", data_type=DataType.FP32, dims=(-1, 4)),)))
    assert form == {
        "name": "m",
        "platform": "",
        "backend": "",
        "runtime": "",
        "max_batch_size": 0,
        "input": [
            {
                "name": "IN",
                "data_type": "TYPE_FP32",
                "format": "FORMAT_NONE",
                "dims": [-1, 4],
                "is_shape_tensor": False,
                "allow_ragged_batch": False,
                "optional": False,
                "is_non_linear_format_io": False,
            }
        ],
        "output": [],
        "batch_input": [],
        "batch_output": [],
        "instance_group": [],
        "default_model_filename": "",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
    }


def test_set_messages_are_printed_even_when_empty() -> None:
    form = to_json_form(ModelConfig(output=(ModelOutput(reshape=ModelTensorReshape()),)))
    assert form["output"][0]["reshape"] == {"shape": []}


def test_integers_of_64_bits_are_numbers_and_keys_are_strings() -> None:
    batching = ModelDynamicBatching(
        max_queue_delay_microseconds=2**63, priority_queue_policy={1: ModelQueuePolicy(max_queue_size=3)}
    )
    form = to_json_form(ModelConfig(dynamic_batching=batching))["dynamic_batching"]
    assert form["max_queue_delay_microseconds"] == 2**63
    assert list(form["priority_queue_policy"]) == ["1"]


def test_some_integers_stay_strings_as_in_triton() -> None:
    spec = GraphSpec(
        input={"a": GraphSpecShape((1, 2))}, graph_lower_bound=GraphSpecLowerBound(input={"b": GraphSpecShape((3,))})
    )
    form = to_json_form(
        ModelConfig(
            sequence_batching=ModelSequenceBatching(
                state=(SequenceState(dims=(1,), initial_state=(InitialState(dims=(1, 2)),)),)
            ),
            instance_group=(ModelInstanceGroup(secondary_devices=(SecondaryDevice(device_id=7),)),),
            optimization=ModelOptimizationPolicy(cuda=OptimizationCuda(graph_spec=(spec,))),
        )
    )
    state = form["sequence_batching"]["state"][0]
    assert (state["dims"], state["initial_state"][0]["dims"]) == ([1], ["1", "2"])
    assert form["instance_group"][0]["secondary_devices"][0]["device_id"] == "7"
    graph = form["optimization"]["cuda"]["graph_spec"][0]
    assert graph["input"]["a"]["dim"] == ["1", "2"]
    assert graph["graph_lower_bound"]["input"]["b"]["dim"] == ["3"]


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("{}", ModelConfig()),
        ('{"max_batch_size": "8"}', ModelConfig(max_batch_size=8)),
        ('{"maxBatchSize": 8.0}', ModelConfig(max_batch_size=8)),
        (
            '{"input": [{"name": "IN", "dataType": "type_fp32", "dims": ["-1", 3]}]}',
            ModelConfig(input=(ModelInput(name="IN", data_type=DataType.FP32, dims=(-1, 3)),)),
        ),
        ('{"instance_group": [{"kind": 1}]}', ModelConfig(instance_group=(ModelInstanceGroup(kind=InstanceKind.GPU),))),
        ('{"dynamic_batching": {}}', ModelConfig(dynamic_batching=ModelDynamicBatching())),
        ('{"dynamic_batching": null, "name": null}', ModelConfig()),
        ('{"parameters": {"a": {"string_value": "b"}}}', ModelConfig(parameters={"a": ModelParameter("b")})),
    ],
)
def test_reads(text: str, config: ModelConfig) -> None:
    assert from_json_form(text) == config


QUEUE_DELAY = "unknown field 'dynamic_batching.max_queue_delay'; did you mean 'max_queue_delay_microseconds'?"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Input data was truncated"),
        ("[1]", "expected a JSON object, got an array"),
        ("null", "expected a JSON object, got null"),
        ("\ud800", "'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed"),
        ("[" * 100_000, "nested too deeply"),
        ('{"foo": 1}', "unknown field 'foo'"),
        ('{"dynamic_batching": {"max_queue_delay": 3}}', QUEUE_DELAY),
        ('{"max_batch_size": 8, "maxBatchSize": null}', "field 'maxBatchSize' is given twice"),
        ('{"input": [{}, {"foo": 1}]}', "unknown field 'input[1].foo'"),
        ('{"parameters": {"a": {"foo": 1}}}', "unknown field 'parameters.a.foo'"),
        ('{"dynamic_batching": 3}', "expected an object at 'dynamic_batching', got a number"),
        ('{"input": [null]}', "expected an object at 'input[0]', got null"),
        ('{"parameters": ["a"]}', "expected an object at 'parameters', got an array"),
        ('{"max_batch_size": 99999999999}', "Failed to parse max_batch_size field: Value out of range: 99999999999"),
        (
            '{"input": [{"data_type": 99}]}',
            "the enum of field 'input[0].data_type' has no value of the given number",
        ),
    ],
)
def test_a_wrong_override_says_where(text: str, reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        from_json_form(text)
    assert caught.value.message == f"Invalid config override: {reason}"


def test_two_schedulers_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="scheduling_choice"):
        from_json_form('{"dynamic_batching": {}, "sequence_batching": {}}')


def test_the_words_before_the_reason_are_the_callers() -> None:
    with pytest.raises(InvalidArgument, match=r"^model 'm' completed wrongly: unknown field 'foo'$"):
        from_json_form('{"foo": 1}', what="model 'm' completed wrongly")


def test_long_texts_are_read_without_a_search_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protobuf's, which holds the interpreter's lock for as long as the text is."""
    shown: list[str] = []
    parse = json_format.ParseDict

    def parse_shown(fields: dict[str, Any], message: Message) -> Message:
        shown.append(json.dumps(fields))
        return parse(fields, message)

    monkeypatch.setattr(json_format, "ParseDict", parse_shown)
    long, other = "é" * 5000, "x" * 4097
    fields = {"name": "m", "parameters": {"p": {"string_value": long}, "q": {"string_value": "short"}}}
    config = from_json_form(json.dumps({**fields, "output": [{"name": other, "dims": [1], "data_type": "TYPE_FP32"}]}))
    assert {key: value.string_value for key, value in config.parameters.items()} == {"p": long, "q": "short"}
    assert config.output[0].name == other
    assert long not in shown[0]
    assert len(shown[0]) < 1000


@pytest.mark.parametrize("half", [r"\ud800", r"\udc00", r"\ud800x", r"\udc00\ud800"])
def test_half_of_a_surrogate_pair_is_refused_in_a_long_text(half: str) -> None:
    padded = half + "x" * 5000
    with pytest.raises(InvalidArgument, match="Invalid config override"):
        from_json_form(f'{{"name": "m", "parameters": {{"p": {{"string_value": "{padded}"}}}}}}')
