"""The tensors that a sequence batcher adds to a model: its controls and its implicit state.

They are no part of a configuration's `input` and `output`, so a client never sees them, but the model's file has them
and its backend is given them. Source: Triton's `ModelSequenceBatching`.
"""

from __future__ import annotations

from protocol.datatypes import DataType
from repository.model_config import Control, ModelConfig, ModelInput, ModelOutput

CONTROL_DIMS = (1,)


def control_inputs(config: ModelConfig) -> tuple[ModelInput, ...]:
    """One input for each control tensor. Its shape, without the batch dimension, is [1]."""
    batching = config.sequence_batching
    if batching is None:
        return ()
    return tuple(
        ModelInput(name=entry.name, data_type=control_data_type(entry.control[0]), dims=CONTROL_DIMS)
        for entry in batching.control_input
        if entry.control
    )


def control_data_type(control: Control) -> DataType:
    """The datatype of a control tensor: that of its pair of values, for a correlation id the one that is given."""
    if control.int32_false_true:
        return DataType.INT32
    if control.fp32_false_true:
        return DataType.FP32
    if control.bool_false_true:
        return DataType.BOOL
    return control.data_type


def state_inputs(config: ModelConfig) -> tuple[ModelInput, ...]:
    """One input for each implicit state."""
    batching = config.sequence_batching
    states = () if batching is None else batching.state
    return tuple(ModelInput(name=state.input_name, data_type=state.data_type, dims=state.dims) for state in states)


def state_outputs(config: ModelConfig) -> tuple[ModelOutput, ...]:
    """The outputs that become the next state."""
    batching = config.sequence_batching
    states = () if batching is None else batching.state
    return tuple(ModelOutput(name=state.output_name, data_type=state.data_type, dims=state.dims) for state in states)


def hidden_outputs(config: ModelConfig) -> tuple[ModelOutput, ...]:
    """The `state_outputs` that no client may request: they are not in the configuration's `output`."""
    visible = {output.name for output in config.output}
    return tuple(output for output in state_outputs(config) if output.name not in visible)
