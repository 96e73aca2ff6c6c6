"""Tensor sets: the tensors of a model with an engine, by its parameter `tensor_names`, and the reader of each set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backends.engines.tensors import llm_api, tensorrt_llm
from backends.engines.tensors.request import (
    EXCLUDE_INPUT,
    EXTRAS,
    IMAGE,
    RETURN_PREFIX,
    SAMPLING,
    STREAM,
    TEXT_INPUT,
    TOKEN_IDS,
    TextRequest,
    parse_request,
)
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest
from repository.model_config import ModelConfig, ModelInput, ModelOutput

PARAMETER = "tensor_names"


@dataclass(frozen=True, slots=True)
class TensorSet:
    """`has_batches` says that a model may have a batch dimension, for one row at a time."""

    inputs: Sequence[ModelInput]
    outputs: Sequence[ModelOutput]
    parse: Callable[[InferenceRequest], TextRequest]
    has_batches: bool = False


_Rows = Sequence[tuple[str, DataType, tuple[int, ...]]]


def _made(inputs: _Rows, outputs: _Rows) -> tuple[Sequence[ModelInput], Sequence[ModelOutput]]:
    """All inputs but the text are optional."""
    return (
        tuple(
            ModelInput(name=name, data_type=datatype, dims=dims, optional=name != TEXT_INPUT)
            for name, datatype, dims in inputs
        ),
        tuple(ModelOutput(name=name, data_type=datatype, dims=dims) for name, datatype, dims in outputs),
    )


VLLM = TensorSet(
    *_made(
        (
            (TEXT_INPUT, DataType.BYTES, (1,)),
            (TOKEN_IDS, DataType.INT32, (-1,)),
            (IMAGE, DataType.BYTES, (-1,)),
            (STREAM, DataType.BOOL, (1,)),
            (SAMPLING, DataType.BYTES, (1,)),
            (EXCLUDE_INPUT, DataType.BOOL, (1,)),
            *((f"{RETURN_PREFIX}{name}", DataType.BOOL, (1,)) for name in EXTRAS),
        ),
        (
            ("text_output", DataType.BYTES, (-1,)),
            ("finish_reason", DataType.BYTES, (-1,)),
            ("cumulative_logprob", DataType.FP32, (-1,)),
            ("logprobs", DataType.BYTES, (-1,)),
            ("num_input_tokens", DataType.UINT32, (1,)),
            ("num_output_tokens", DataType.UINT32, (-1,)),
        ),
    ),
    parse_request,
)
TENSORRT_LLM = TensorSet(
    *_made(tensorrt_llm.INPUTS, tensorrt_llm.OUTPUTS), tensorrt_llm.parse_tensorrt_llm, has_batches=True
)
LLM_API = TensorSet(*_made(llm_api.INPUTS, llm_api.OUTPUTS), llm_api.parse_llm_api, has_batches=True)
_SETS = {"": VLLM, "vllm": VLLM, "tensorrt_llm": TENSORRT_LLM, "llm_api": LLM_API}


def tensor_set(config: ModelConfig) -> TensorSet:
    """Raises InvalidArgument."""
    name = config.parameter(PARAMETER)
    found = _SETS.get(name)
    if found is None:
        known = " or ".join(f"'{each}'" for each in _SETS if each)
        raise InvalidArgument(f"model '{config.name}', parameters['{PARAMETER}']: expected {known}, got '{name:.100}'")
    return found
