"""Completion of the configuration of a model with an engine: the tensors of its set. Pure."""

from __future__ import annotations

import msgspec

from backends.engines.tensors.sets import tensor_set
from protocol.errors import InvalidArgument
from repository.model_config import (
    ModelConfig,
    ModelTransactionPolicy,
)


def complete_engine_config(config: ModelConfig) -> ModelConfig:
    """Add the tensors that are missing, and make the model decoupled.

    Raises:
        InvalidArgument: the configuration says otherwise.
    """
    tensors = tensor_set(config)
    inputs = {each.name: each for each in config.input}
    outputs = {each.name: each for each in config.output}
    inputs |= {each.name: each for each in tensors.inputs if each.name not in inputs}
    outputs |= {each.name: each for each in tensors.outputs if each.name not in outputs}
    completed = msgspec.structs.replace(
        config,
        input=tuple(inputs.values()),
        output=tuple(outputs.values()),
        model_transaction_policy=config.model_transaction_policy or ModelTransactionPolicy(decoupled=True),
    )
    check_engine_config(completed)
    return completed


def check_engine_config(config: ModelConfig) -> None:
    """Judge a final configuration. Raises InvalidArgument."""
    place = f"model '{config.name}'"
    tensors = tensor_set(config)
    if config.max_batch_size and not tensors.has_batches:
        raise InvalidArgument(
            f"{place}: an engine batches by itself: max_batch_size must be 0, got {config.max_batch_size}"
        )
    if config.sequence_batching is not None:
        raise InvalidArgument(f"{place}: an engine has no sequences: sequence_batching must not be set")
    if not config.is_decoupled:
        raise InvalidArgument(
            f"{place}: backend '{config.backend}' must be configured to use decoupled model transaction policy"
        )
    datatypes = {each.name: each.data_type for each in tensors.inputs}
    for each in config.input:
        datatype = datatypes.get(each.name)
        if datatype is None:
            known = ", ".join(sorted(datatypes))
            raise InvalidArgument(f"{place}: an engine has no input '{each.name}'; it has {known}")
        if each.data_type is not datatype:
            raise InvalidArgument(
                f"{place}: input '{each.name}' must have data_type {datatype.name}, got {each.data_type.name}"
            )
    names = [each.name for each in tensors.outputs]
    for output in config.output:
        if output.name not in names:
            raise InvalidArgument(f"{place}: an engine has no output '{output.name}'; it has {', '.join(names)}")
