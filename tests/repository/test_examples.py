"""Whole configurations, of the three kinds that people write, through every stage that reads them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from protocol.datatypes import DataType
from repository.instance_groups import UsableGpus
from repository.json_form import from_json_form, to_json_form
from repository.layout import find_models
from repository.loader import read_config
from repository.model_config import (
    Control,
    ControlInput,
    ControlKind,
    EnsembleStep,
    InitialState,
    InstanceKind,
    ModelConfig,
    ModelDynamicBatching,
    ModelEnsembling,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
    ModelParameter,
    ModelQueuePolicy,
    ModelSequenceBatching,
    SequenceState,
    StrategyDirect,
)
from repository.pbtxt import format_pbtxt, parse_pbtxt
from repository.unsupported import refuse_unbuilt
from repository.validation import normalise, validate

DYNAMIC = """
backend: "python"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100
  priority_levels: 2 default_priority_level: 2
  default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 50000 allow_timeout_override: true
    max_queue_size: 64 } }
instance_group [ { kind: KIND_CPU count: 2 } ]
parameters { key: "EXECUTION_ENV_PATH" value: { string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }
"""

SEQUENCE = """
backend: "onnxruntime"
sequence_batching {
  max_sequence_idle_microseconds: 5000000
  direct { max_queue_delay_microseconds: 1000 minimum_slot_utilization: 0.5 }
  control_input [
    { name: "START"  control [ { kind: CONTROL_SEQUENCE_START  fp32_false_true: [ 0, 1 ] } ] },
    { name: "END"    control [ { kind: CONTROL_SEQUENCE_END    fp32_false_true: [ 0, 1 ] } ] },
    { name: "READY"  control [ { kind: CONTROL_SEQUENCE_READY  fp32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] } ]
  state [ { input_name: "SIN" output_name: "SOUT" data_type: TYPE_INT32 dims: [ 1 ]
            initial_state { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true name: "zero" } } ]
}
"""

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input { name: "RAW" data_type: TYPE_UINT8 dims: -1 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
ensemble_scheduling { step [
  { model_name: "pre"  model_version: -1 input_map { key: "RAW" value: "RAW" }
    output_map { key: "T" value: "tensor" } },
  { model_name: "main" model_version: -1 input_map { key: "X" value: "tensor" }
    output_map { key: "Y" value: "OUT" } } ] }
"""

FALSE_TRUE = (0.0, 1.0)

EXPECTED = {
    DYNAMIC: ModelConfig(
        backend="python",
        max_batch_size=8,
        input=(ModelInput(name="IN", data_type=DataType.FP32, dims=(-1,)),),
        output=(ModelOutput(name="OUT", data_type=DataType.FP32, dims=(-1,)),),
        dynamic_batching=ModelDynamicBatching(
            preferred_batch_size=(4, 8),
            max_queue_delay_microseconds=100,
            priority_levels=2,
            default_priority_level=2,
            default_queue_policy=ModelQueuePolicy(
                default_timeout_microseconds=50000, allow_timeout_override=True, max_queue_size=64
            ),
        ),
        instance_group=(ModelInstanceGroup(kind=InstanceKind.CPU, count=2),),
        parameters={"EXECUTION_ENV_PATH": ModelParameter("$$TRITON_MODEL_DIRECTORY/env.tar.gz")},
    ),
    SEQUENCE: ModelConfig(
        backend="onnxruntime",
        sequence_batching=ModelSequenceBatching(
            max_sequence_idle_microseconds=5_000_000,
            direct=StrategyDirect(max_queue_delay_microseconds=1000, minimum_slot_utilization=0.5),
            control_input=(
                ControlInput("START", (Control(ControlKind.SEQUENCE_START, fp32_false_true=FALSE_TRUE),)),
                ControlInput("END", (Control(ControlKind.SEQUENCE_END, fp32_false_true=FALSE_TRUE),)),
                ControlInput("READY", (Control(ControlKind.SEQUENCE_READY, fp32_false_true=FALSE_TRUE),)),
                ControlInput("CORRID", (Control(ControlKind.SEQUENCE_CORRID, data_type=DataType.UINT64),)),
            ),
            state=(
                SequenceState(
                    input_name="SIN",
                    output_name="SOUT",
                    data_type=DataType.INT32,
                    dims=(1,),
                    initial_state=(InitialState(DataType.INT32, (1,), zero_data=True, name="zero"),),
                ),
            ),
        ),
    ),
    ENSEMBLE: ModelConfig(
        platform="ensemble",
        max_batch_size=4,
        input=(ModelInput(name="RAW", data_type=DataType.UINT8, dims=(-1,)),),
        output=(ModelOutput(name="OUT", data_type=DataType.FP32, dims=(4,)),),
        ensemble_scheduling=ModelEnsembling(
            step=(
                EnsembleStep("pre", -1, {"RAW": "RAW"}, {"T": "tensor"}),
                EnsembleStep("main", -1, {"X": "tensor"}, {"Y": "OUT"}),
            )
        ),
    ),
}

TEXTS = pytest.mark.parametrize("text", [DYNAMIC, SEQUENCE, ENSEMBLE], ids=["dynamic", "sequence", "ensemble"])


@TEXTS
def test_parses_to_the_typed_configuration(text: str) -> None:
    assert parse_pbtxt(text, source="test") == EXPECTED[text]


@TEXTS
def test_goes_through_both_forms_unchanged(text: str) -> None:
    config = EXPECTED[text]
    assert parse_pbtxt(format_pbtxt(config), source="test") == config
    assert from_json_form(msgspec.json.encode(to_json_form(config))) == config


@TEXTS
def test_is_valid_when_read_from_a_repository(text: str, tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text(text)
    config = read_config(find_models([tmp_path]).models["m"])
    assert config.name == "m"
    validate(normalise(config, gpus=UsableGpus((0,)), backend_default_cpu_count=2, backend_prefers_gpu=True))


@TEXTS
def test_all_of_it_is_built(text: str) -> None:
    refuse_unbuilt(EXPECTED[text])
