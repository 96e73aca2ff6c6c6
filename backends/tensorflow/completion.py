"""Completes a configuration from a SavedModel, tensor by tensor.

Unlike the completion of other backends an entry may be given in part, and the dimensions that are given tell whether
the model is to batch; the rules are those of Triton's tensorflow backend.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from backends.tensorflow.tensors import ModelTensor, ModelTensors, require_data_type
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from repository.completion import format_shape
from repository.model_config import ModelConfig, ModelDynamicBatching, ModelInput, ModelOutput, ModelTensorReshape
from repository.sequence_tensors import control_inputs, state_inputs, state_outputs
from repository.shape_rules import generated_inputs

logger = logging.getLogger("trioton.tensorflow")

Entry = TypeVar("Entry", ModelInput, ModelOutput)


def complete(config: ModelConfig, tensors: ModelTensors, *, default_max_batch_size: int) -> ModelConfig:
    """Inputs that are missing are added; outputs only where the configuration names none.

    Raises:
        InvalidArgument: max_batch_size is set, but the model cannot batch; the dimensions that are given contradict
            each other as to that; or those of a tensor are given by nobody.
        Unsupported: a tensor has a datatype that the protocol does not know.
    """
    max_batch_size = _max_batch_size(config, tensors, default_max_batch_size)
    is_batching = max_batch_size > 0
    hidden = {entry.name for entry in (*control_inputs(config), *state_inputs(config))} | set(generated_inputs(config))
    hidden_results = {entry.name for entry in state_outputs(config)}
    known_inputs = {tensor.name: tensor for tensor in tensors.inputs}
    known_outputs = {tensor.name: tensor for tensor in tensors.outputs}
    inputs = [_filled(entry, known_inputs.get(entry.name), config, is_batching, "input") for entry in config.input]
    there = {entry.name for entry in inputs} | hidden
    inputs += [
        _filled(ModelInput(name=tensor.name), tensor, config, is_batching, "input")
        for tensor in tensors.inputs
        if tensor.name not in there
    ]
    wanted = config.output or [
        ModelOutput(name=tensor.name) for tensor in tensors.outputs if tensor.name not in hidden_results
    ]
    outputs = [_filled(entry, known_outputs.get(entry.name), config, is_batching, "output") for entry in wanted]
    dynamic_batching = config.dynamic_batching
    if max_batch_size > 1 and config.sequence_batching is None and dynamic_batching is None:
        dynamic_batching = ModelDynamicBatching()
    return msgspec.structs.replace(
        config,
        max_batch_size=max_batch_size,
        input=tuple(inputs),
        output=tuple(outputs),
        dynamic_batching=dynamic_batching,
    )


def _max_batch_size(config: ModelConfig, tensors: ModelTensors, default: int) -> int:
    # A tensor without a rank says nothing, and of a scalar there is one, whatever the number of rows.
    can_batch = bool(tensors.inputs) and all(
        tensor.shape is None or tensor.shape[:1] == (-1,) for tensor in (*tensors.inputs, *tensors.outputs)
    )
    if config.max_batch_size > 0:
        if not can_batch:
            raise InvalidArgument(
                f"unable to autofill for '{config.name}', configuration specified max-batch {config.max_batch_size} "
                "but model signature does not support batching"
            )
        return config.max_batch_size
    if not can_batch or _wants_batches(config, tensors) is False or default <= 0:
        return 0
    logger.info(
        "autofilled max_batch_size to %d for model '%s' since batching is supported but no max_batch_size is specified "
        "in model configuration. Must specify max_batch_size to utilize autofill with a larger max batch size",
        *(default, config.name),
    )
    return default


def _wants_batches(config: ModelConfig, tensors: ModelTensors) -> bool | None:
    """Whether the dimensions that are given leave the batch's out; None where none are."""
    found: dict[bool, str] = {}
    given: tuple[tuple[Sequence[ModelInput | ModelOutput], tuple[ModelTensor, ...]], ...] = (
        (config.input, tensors.inputs),
        (config.output, tensors.outputs),
    )
    for entries, known in given:
        ranks = {tensor.name: len(tensor.shape) for tensor in known if tensor.shape is not None}
        for entry in entries:
            rank = ranks.get(entry.name)
            has_dims = bool(entry.dims) or entry.reshape is not None
            if rank is None or not has_dims or len(entry.backend_dims) not in (rank, rank - 1):
                continue
            found.setdefault(len(entry.backend_dims) < rank, entry.name)
    if len(found) > 1:
        raise InvalidArgument(
            f"unable to autofill for '{config.name}', model tensor configurations are contradicting each other in "
            f"terms of whether batching is supported: '{found[True]}' is given without the batch's dimension, and "
            f"'{found[False]}' with it"
        )
    return next(iter(found), None)


def _filled(entry: Entry, tensor: ModelTensor | None, config: ModelConfig, is_batching: bool, which: str) -> Entry:
    """An entry with the datatype and dimensions that it lacks; one that the model does not know stays as it is."""
    if tensor is None:
        return entry
    if entry.data_type is DataType.INVALID:
        require_data_type(tensor, config, which)
        entry = msgspec.structs.replace(entry, data_type=tensor.data_type)
    if entry.dims:
        return entry
    if tensor.shape is None:
        raise InvalidArgument(
            f"Unable to autofill for '{config.name}': the rank of model tensor '{entry.name}' is 0 and dimensions are "
            f"not defined; the file says no shape, so the configuration must list it with its dims"
        )
    dims = tensor.shape[1:] if is_batching else tensor.shape
    if dims:
        return msgspec.structs.replace(entry, dims=dims)
    if entry.reshape is not None and entry.reshape.shape:
        raise InvalidArgument(
            f"unable to autofill for '{config.name}': '{entry.name}' has a reshape to "
            f"{format_shape(entry.reshape.shape)} and no dims, and is one element of the model"
        )
    return msgspec.structs.replace(entry, dims=(1,), reshape=ModelTensorReshape())
