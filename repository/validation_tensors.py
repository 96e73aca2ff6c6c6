"""Validation rules for inputs, outputs, batch inputs and batch outputs.

Part of `repository.validation`. Source: Triton's `ModelInput`, `ModelOutput`, `BatchInput`, `BatchOutput`.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Sequence

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, Unsupported
from repository.model_config import ModelConfig, ModelInput, ModelOutput, TensorFormat

TENSORRT_PLATFORM = "tensorrt_plan"


def validate_tensors(config: ModelConfig) -> None:
    """Judge inputs, outputs, batch inputs and batch outputs, in this order.

    Raises:
        InvalidArgument: the first rule that is broken.
        Unsupported: a label file outside the model's directory.
    """
    for model_input in config.input:
        _validate_tensor(config, model_input, "input")
        if model_input.format is not TensorFormat.NONE and len(model_input.dims) != 3:
            raise _invalid(config, "model input NHWC/NCHW require 3 dims")
        _validate_tensorrt_only(config, model_input, "input")
    for model_output in config.output:
        _validate_tensor(config, model_output, "output")
        _validate_tensorrt_only(config, model_output, "output")
        _validate_label_file(config, model_output)
    _validate_batch_inputs(config)
    _validate_batch_outputs(config)


def _validate_tensor(config: ModelConfig, tensor: ModelInput | ModelOutput, which: str) -> None:
    if not tensor.name:
        raise _invalid(config, f"model {which} must specify 'name'")
    prefix = f"model {which} '{tensor.name}'"
    if tensor.data_type is DataType.INVALID:
        raise _invalid(config, f"{prefix} must specify 'data_type'")
    if not tensor.dims:
        raise _invalid(config, f"{prefix} must specify 'dims'")
    if not _are_valid(tensor.dims):
        raise _invalid(config, f"{prefix} dimension must be integer >= 1, or -1 to indicate a variable-size dimension")
    if tensor.reshape is None:
        return
    reshape = tensor.reshape.shape
    if not _are_valid(reshape):
        raise _invalid(
            config, f"{prefix} reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension"
        )
    if not reshape and not config.is_batching:
        raise _invalid(
            config,
            f"{prefix} cannot have empty reshape for non-batching model as scalar tensors are not supported",
        )
    if (-1 in tensor.dims) != (-1 in reshape):
        raise _invalid(config, f"{prefix} has different size for dims and reshape")
    if tensor.dims.count(-1) != reshape.count(-1):
        raise _invalid(config, f"{prefix} has different number of variable-size dimensions for dims and reshape")
    if _fixed_sizes(tensor.dims) != _fixed_sizes(reshape):
        raise _invalid(config, f"{prefix} has different size for dims and reshape")


def _validate_tensorrt_only(config: ModelConfig, tensor: ModelInput | ModelOutput, which: str) -> None:
    if tensor.is_shape_tensor and config.platform != TENSORRT_PLATFORM:
        raise _invalid(config, "shape tensors are only supported for TensorRT platform")
    if tensor.is_non_linear_format_io:
        if config.platform != TENSORRT_PLATFORM:
            raise _invalid(config, "Non-linear IO format is only supported for the TensorRT platform")
        if len(tensor.dims) != 3:
            raise _invalid(config, f"Non-linear IO format {which} requires 3 dims")


def _validate_label_file(config: ModelConfig, output: ModelOutput) -> None:
    path = posixpath.normpath(output.label_filename)
    if path.startswith("/") or path.split("/")[0] == "..":
        raise Unsupported(
            f"label file path '{output.label_filename}' for output '{output.name}' in model '{config.name}' is outside "
            "model directory"
        )


def _validate_batch_inputs(config: ModelConfig) -> None:
    for batch_input in config.batch_input:
        _validate_source(config, f"batch input kind '{batch_input.kind.value}'", batch_input.source_input)
        if batch_input.data_type not in (DataType.INT32, DataType.FP32):
            raise _invalid(config, "batch input data type must be TYPE_INT32 or TYPE_FP32")


def _validate_batch_outputs(config: ModelConfig) -> None:
    outputs = {output.name for output in config.output}
    targets: set[str] = set()
    for batch_output in config.batch_output:
        _validate_source(config, f"batch output kind '{batch_output.kind.value}'", batch_output.source_input)
        for target in batch_output.target_name:
            if target not in outputs:
                raise _invalid(config, f"unknown target output name '{target}'")
            if target in targets:
                raise _invalid(config, f"target output name '{target}' can only be specified once")
            targets.add(target)


def _validate_source(config: ModelConfig, what: str, source_input: Sequence[str]) -> None:
    if len(source_input) != 1:
        raise _invalid(config, f"{what} expects 1 source input, got {len(source_input)}")
    if source_input[0] not in {model_input.name for model_input in config.input}:
        raise _invalid(config, f"unknown source input name '{source_input[0]}'")


def _are_valid(dims: Sequence[int]) -> bool:
    return all(dim >= 1 or dim == -1 for dim in dims)


def _fixed_sizes(dims: Sequence[int]) -> list[int]:
    """The element counts of the stretches between variable dimensions; an empty stretch counts as one element."""
    sizes: list[int] = []
    start = 0
    for end in (*(index for index, dim in enumerate(dims) if dim == -1), len(dims)):
        sizes.append(math.prod(dims[start:end]))
        start = end + 1
    return sizes


def _invalid(config: ModelConfig, text: str) -> InvalidArgument:
    return InvalidArgument(f"{text} for {config.name}")
