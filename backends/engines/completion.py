"""Completion of the configuration of a model with an engine: the tensors of Triton's vLLM backend. Pure."""

from __future__ import annotations

import msgspec

from backends.engines.request import EXCLUDE_INPUT, EXTRAS, RETURN_PREFIX, SAMPLING, STREAM, TEXT_INPUT, TOKEN_IDS
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from repository.model_config import (
    ModelConfig,
    ModelInput,
    ModelOutput,
    ModelTransactionPolicy,
)

_INPUTS = (
    (TEXT_INPUT, DataType.BYTES, 1),
    (TOKEN_IDS, DataType.INT32, -1),
    (STREAM, DataType.BOOL, 1),
    (SAMPLING, DataType.BYTES, 1),
    (EXCLUDE_INPUT, DataType.BOOL, 1),
    *((f"{RETURN_PREFIX}{name}", DataType.BOOL, 1) for name in EXTRAS),
)
_OUTPUTS = (
    ("text_output", DataType.BYTES, -1),
    ("finish_reason", DataType.BYTES, -1),
    ("cumulative_logprob", DataType.FP32, -1),
    ("logprobs", DataType.BYTES, -1),
    ("num_input_tokens", DataType.UINT32, 1),
    ("num_output_tokens", DataType.UINT32, -1),
)


def complete_engine_config(config: ModelConfig) -> ModelConfig:
    """Add the tensors that are missing, and make the model decoupled.

    Raises:
        InvalidArgument: the configuration says otherwise.
    """
    inputs = {each.name: each for each in config.input}
    outputs = {each.name: each for each in config.output}
    for name, datatype, size in _INPUTS:
        optional = name != TEXT_INPUT
        inputs.setdefault(name, ModelInput(name=name, data_type=datatype, dims=(size,), optional=optional))
    for name, datatype, size in _OUTPUTS:
        outputs.setdefault(name, ModelOutput(name=name, data_type=datatype, dims=(size,)))
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
    if config.max_batch_size:
        raise InvalidArgument(
            f"{place}: an engine batches by itself: max_batch_size must be 0, got {config.max_batch_size}"
        )
    if config.sequence_batching is not None:
        raise InvalidArgument(f"{place}: an engine has no sequences: sequence_batching must not be set")
    if not config.is_decoupled:
        raise InvalidArgument(
            f"{place}: backend '{config.backend}' must be configured to use decoupled model transaction policy"
        )
    for name, datatype, _ in _INPUTS:
        for each in config.input:
            if each.name == name and each.data_type is not datatype:
                raise InvalidArgument(
                    f"{place}: input '{name}' must have data_type {datatype.name}, got {each.data_type.name}"
                )
    known = {name for name, _, _ in _INPUTS}
    for each in config.input:
        if each.name not in known:
            raise InvalidArgument(f"{place}: an engine has no input '{each.name}'; it has {', '.join(sorted(known))}")
    names = [name for name, _, _ in _OUTPUTS]
    for output in config.output:
        if output.name not in names:
            raise InvalidArgument(f"{place}: an engine has no output '{output.name}'; it has {', '.join(names)}")
