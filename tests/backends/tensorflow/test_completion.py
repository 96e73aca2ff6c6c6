"""What a configuration takes from a SavedModel, and what it says itself."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from backends.tensorflow import TensorFlowBackend
from backends.tensorflow.completion import complete
from backends.tensorflow.tensors import ModelTensor, ModelTensors
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, Unsupported
from repository.model_config import Dims, ModelConfig, ModelTensorReshape
from tests.backends.helpers import source_of
from tests.backends.tensorflow.tensorflow_models import sum_of


def tensor(name: str, shape: Dims | None, data_type: DataType = DataType.FP32) -> ModelTensor:
    return ModelTensor(name, f"{name}:0", data_type, data_type.value, shape)


ROWS = ModelTensors((tensor("A", (-1, 3)), tensor("B", (-1, 3))), (tensor("X", (-1, 4)), tensor("Y", (-1, -1, 2))))


def completed(text: str, tensors: ModelTensors = ROWS, default: int = 4) -> ModelConfig:
    config = source_of(f'backend: "tensorflow"\n{text}').config
    return complete(config, tensors, default_max_batch_size=default)


def dims(config: ModelConfig) -> dict[str, Dims]:
    return {**{entry.name: entry.dims for entry in config.input}, **{entry.name: entry.dims for entry in config.output}}


def test_everything_is_taken_from_the_model() -> None:
    config = completed("")
    assert config.max_batch_size == 4
    assert config.dynamic_batching is not None
    assert dims(config) == {"A": (3,), "B": (3,), "X": (4,), "Y": (-1, 2)}
    assert (
        {entry.data_type for entry in config.input} == {entry.data_type for entry in config.output} == {DataType.FP32}
    )


def test_a_batch_size_and_a_scheduler_of_its_own_stay() -> None:
    config = completed("max_batch_size: 16 sequence_batching { }")
    assert config.max_batch_size == 16
    assert config.dynamic_batching is None
    assert completed("max_batch_size: 1").dynamic_batching is None


def test_a_default_of_none_is_no_batching() -> None:
    assert completed("", default=0).max_batch_size == 0
    assert dims(completed("", default=0))["A"] == (-1, 3)


def test_entries_are_filled_one_by_one() -> None:
    """Inputs that are missing are added; of outputs those that are named stay alone."""
    config = completed('input [ { name: "B" dims: [ 3 ] } ] output [ { name: "Y" data_type: TYPE_FP32 } ]')
    assert dims(config) == {"B": (3,), "A": (3,), "Y": (-1, 2)}
    assert config.input[0].data_type is DataType.FP32


def test_dimensions_that_hold_the_batch_say_that_there_is_none() -> None:
    config = completed('input [ { name: "A" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]')
    assert config.max_batch_size == 0
    assert dims(config) == {"A": (-1, 3), "B": (-1, 3), "X": (-1, 4), "Y": (-1, -1, 2)}
    with pytest.raises(InvalidArgument, match=r"contradicting each other .*: 'X' is given without.* and 'A' with it"):
        completed('input [ { name: "A" dims: [ -1, 3 ] } ] output [ { name: "X" dims: [ 4 ] } ]')


def test_a_model_of_one_size_does_not_batch() -> None:
    fixed = ModelTensors((tensor("A", (2, 3)),), (tensor("X", (-1, 3)),))
    assert completed("", fixed).max_batch_size == 0
    assert dims(completed("", fixed)) == {"A": (2, 3), "X": (-1, 3)}
    with pytest.raises(InvalidArgument, match="configuration specified max-batch 8 but model signature does not"):
        completed("max_batch_size: 8", fixed)


def test_one_element_is_reshaped() -> None:
    """With a batch one for each row; a model that takes a single one has none."""
    per_row = ModelTensors((tensor("A", (-1,)),), (tensor("X", (-1,)),))
    assert completed("", per_row).max_batch_size == 4
    single = ModelTensors((tensor("A", ()), tensor("B", (-1, 3))), (tensor("X", (-1,)),))
    assert completed("", single).max_batch_size == 0
    for tensors in (per_row, single):
        entry = completed("", tensors).input[0]
        assert (entry.dims, entry.reshape) == ((1,), ModelTensorReshape())
    with pytest.raises(InvalidArgument, match=r"'A' has a reshape to \[1,1\]"):
        completed('input [ { name: "A" reshape { shape: [ 1, 1 ] } } ]', per_row)


def test_a_tensor_of_no_rank_needs_its_dimensions() -> None:
    open_rank = ModelTensors((tensor("A", (-1, 3)),), (tensor("X", None),))
    assert dims(completed('output [ { name: "X" dims: [ 7 ] } ]', open_rank)) == {"A": (3,), "X": (7,)}
    with pytest.raises(InvalidArgument, match="the rank of model tensor 'X' is 0 and dimensions are not defined"):
        completed("", open_rank)


def test_a_datatype_of_no_protocol_is_refused_only_where_it_is_wanted() -> None:
    strange = ModelTensors((tensor("A", (-1, 3)),), (tensor("X", (-1,)), tensor("Z", (-1,), DataType.INVALID)))
    assert dims(completed('output [ { name: "X" } ]', strange)) == {"A": (3,), "X": (1,)}
    with pytest.raises(Unsupported, match="for output 'Z'"):
        completed("", strange)


def test_a_name_that_the_model_does_not_have_is_left_to_the_check() -> None:
    assert dims(completed('output [ { name: "other" data_type: TYPE_FP32 dims: [ 1 ] } ]'))["other"] == (1,)


def test_controls_and_states_of_sequences_are_not_inputs() -> None:
    text = """
sequence_batching {
  control_input [ { name: "B" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] } ]
  state [ { input_name: "A" output_name: "X" data_type: TYPE_FP32 dims: [ 3 ] } ]
}
"""
    assert dims(completed(text)) == {"Y": (-1, 2)}


async def test_the_default_is_the_backends_setting(tmp_path: Path) -> None:
    sum_of(tmp_path)
    source = source_of('backend: "tensorflow"', tmp_path, settings={"default-max-batch-size": "7"})
    config = await TensorFlowBackend.complete_config(source)
    assert config.max_batch_size == 7
    assert dims(config) == {"A": (3,), "B": (3,), "SUM": (3,)}
