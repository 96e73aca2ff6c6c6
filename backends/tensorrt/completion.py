"""Completes a configuration from an engine, tensor by tensor.

Source: Triton's tensorrt backend. Unlike other formats an engine knows its largest batch, so `max_batch_size` is the
engine's and not the setting `default-max-batch-size`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from backends.tensorrt.description import EngineDescription, EngineTensor
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from repository.model_config import (
    Dims,
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelOutput,
    ModelTensorReshape,
)
from repository.sequence_tensors import control_inputs, state_inputs, state_outputs
from repository.shape_rules import generated_inputs

logger = logging.getLogger(__name__)

Entry = TypeVar("Entry", ModelInput, ModelOutput)


def complete_from_engine(
    config: ModelConfig, description: EngineDescription, groups: Sequence[Sequence[int]]
) -> ModelConfig:
    """Fill in inputs, outputs, `max_batch_size` and dynamic batching. `groups` are the profiles that the instances of
    each group use.

    Raises:
        InvalidArgument: configuration and engine contradict each other.
    """
    most = description.most_rows(groups)
    rows = _max_batch_size(config, description, most)
    hidden = {entry.name for entry in (*control_inputs(config), *state_inputs(config))}
    hidden |= {entry.name for entry in state_outputs(config)} | set(generated_inputs(config))
    dynamic_batching = config.dynamic_batching
    if rows and most > 1 and dynamic_batching is None and config.sequence_batching is None:
        dynamic_batching = ModelDynamicBatching()
    return msgspec.structs.replace(
        config,
        max_batch_size=rows,
        input=_completed_inputs(config, description, rows, hidden),
        output=_completed_outputs(config, description, rows, hidden),
        dynamic_batching=dynamic_batching,
    )


def _max_batch_size(config: ModelConfig, description: EngineDescription, most: int) -> int:
    if config.max_batch_size > most:
        raise InvalidArgument(
            f"autofill failed for model '{config.name}': configuration specified max-batch {config.max_batch_size} "
            f"but TensorRT engine only supports max-batch {most}"
        )
    if config.max_batch_size:
        return config.max_batch_size
    hint = _says_batch(config, description)
    if hint is False:
        return 0
    if hint and not most:
        raise InvalidArgument(
            f"autofill failed for model '{config.name}': model tensor shape configuration hints for dynamic batching "
            f"but the underlying engine doesn't support batching."
        )
    if most:
        logger.info("autofilled max_batch_size to %d for model '%s', the engine's largest batch", most, config.name)
    return most


def _says_batch(config: ModelConfig, description: EngineDescription) -> bool | None:
    """What the configured dims say: one fewer than the engine's leaves room for the batch, as many do not. None where
    they say nothing."""
    engine = {tensor.name: tensor for tensor in description.tensors}
    said: dict[bool, str] = {}
    entries: tuple[ModelInput | ModelOutput, ...] = (*config.input, *config.output)
    for entry in entries:
        tensor = engine.get(entry.name)
        is_ragged = isinstance(entry, ModelInput) and entry.allow_ragged_batch
        if tensor is None or tensor.is_shape_tensor or is_ragged or not entry.dims:
            continue
        difference = len(tensor.shape) - len(entry.backend_dims)
        if difference in (0, 1):
            said[bool(difference)] = entry.name
    if len(said) == 2:
        raise InvalidArgument(
            f"unable to autofill for '{config.name}', model tensor configurations are contradicting each other in "
            f"terms of whether batching is supported: '{said[True]}' leaves the batch dimension out, "
            f"'{said[False]}' does not"
        )
    return next(iter(said), None)


def _completed_inputs(
    config: ModelConfig, description: EngineDescription, rows: int, hidden: set[str]
) -> tuple[ModelInput, ...]:
    engine = {tensor.name: tensor for tensor in description.inputs}
    given = {entry.name for entry in config.input}
    missing = (ModelInput(name=name) for name in engine if name not in given | hidden)
    return tuple(
        _completed(entry, engine.get(entry.name), 0 if entry.allow_ragged_batch else rows)
        for entry in (*config.input, *missing)
    )


def _completed_outputs(
    config: ModelConfig, description: EngineDescription, rows: int, hidden: set[str]
) -> tuple[ModelOutput, ...]:
    engine = {tensor.name: tensor for tensor in description.outputs}
    given = {entry.name for entry in config.output}
    # Outputs may be left out on purpose: only a configuration that names none gets them all.
    missing = () if given else (ModelOutput(name=name) for name in engine if name not in hidden)
    scattered = {target for entry in config.batch_output for target in entry.target_name}
    return tuple(
        _completed(entry, engine.get(entry.name), 0 if entry.name in scattered else rows)
        for entry in (*config.output, *missing)
    )


def _completed(entry: Entry, tensor: EngineTensor | None, rows: int) -> Entry:
    """One without a tensor stays as it is: the check of the final configuration names it."""
    if tensor is None:
        return entry
    if entry.is_shape_tensor and not tensor.is_shape_tensor:
        raise InvalidArgument(f"'{entry.name}' is incorrectly specified as a shape tensor.")
    dims, reshape = _dims(entry, tensor, rows)
    return msgspec.structs.replace(
        entry,
        data_type=tensor.data_type if entry.data_type is DataType.INVALID else entry.data_type,
        dims=dims,
        reshape=reshape,
        is_shape_tensor=tensor.is_shape_tensor,
        is_non_linear_format_io=entry.is_non_linear_format_io or not tensor.is_linear,
    )


def _dims(entry: ModelInput | ModelOutput, tensor: EngineTensor, rows: int) -> tuple[Dims, ModelTensorReshape | None]:
    """A scalar, per row of a batch if there is one, is configured as one element, which the reshape takes away."""
    if entry.dims:
        return entry.dims, entry.reshape
    if rows and tensor.is_shape_tensor:
        return (tensor.shape[0] - 1,), None  # the server adds the batch as the first value
    dims = tensor.shape[1:] if rows else tensor.shape
    if dims:
        return dims, None
    return (1,), ModelTensorReshape() if rows else None
