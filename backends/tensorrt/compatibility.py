"""Validates a final configuration against an engine before the model serves."""

from __future__ import annotations

from collections.abc import Sequence

from backends.tensorrt.description import EngineDescription, EngineTensor
from protocol.datatypes import DataType
from protocol.errors import Internal, InvalidArgument, Unsupported
from repository.completion import TensorSignature, check_against_model
from repository.model_config import Dims, ModelConfig, ModelInput, ModelOutput


def check_compatible(config: ModelConfig, description: EngineDescription, groups: Sequence[Sequence[int]]) -> None:
    """`groups` are the profiles that the instances of each group use.

    Raises:
        InvalidArgument: names, datatypes, shapes or the size of batches differ.
        Internal: a datatype that the protocol does not know; or a control that the engine does not have.
        Unsupported: elements that do not lie one after the other.
    """
    _check_marks(config, description)
    inputs, outputs = signatures(config, description)
    configured = {entry.name: entry.data_type for entry in _entries(config)}
    for tensor in description.tensors:
        which = "input" if tensor.is_input else "output"
        if not (tensor.is_input or tensor.name in configured):
            continue
        if tensor.data_type is DataType.INVALID:
            told = configured.get(tensor.name, DataType.INVALID)
            raise Internal(f"unsupported datatype {told.value} for {which} '{tensor.name}' for model '{config.name}'")
        if not tensor.is_linear:
            raise Unsupported(
                f"model '{config.name}', {which} '{tensor.name}': the engine wants the format {tensor.format}, and "
                f"only LINEAR is supported; build it without restricting the formats of inputs and outputs"
            )
    check_against_model(config, inputs, outputs)
    most = description.most_rows(groups)
    if config.max_batch_size > most:
        raise InvalidArgument(
            f"unable to load model '{config.name}', configuration specified max-batch {config.max_batch_size} but "
            f"TensorRT engine only supports max-batch {most}"
        )


def signatures(
    config: ModelConfig, description: EngineDescription
) -> tuple[tuple[TensorSignature, ...], tuple[TensorSignature, ...]]:
    """Inputs and outputs in the form in which models of any framework are compared with configurations.

    An engine of a fixed number of rows can batch up to it, since batches are filled up. A shape tensor has no batch
    dimension, but the batch as its first value.
    """

    def described(tensor: EngineTensor) -> TensorSignature:
        return TensorSignature(tensor.name, tensor.data_type, shape(tensor))

    def shape(tensor: EngineTensor) -> Dims:
        if not config.is_batching:
            return tensor.shape
        if tensor.is_shape_tensor:
            return (-1, *(size - 1 for size in tensor.shape))
        return (-1, *tensor.shape[1:]) if description.fixed_rows else tensor.shape

    return tuple(map(described, description.inputs)), tuple(map(described, description.outputs))


def _check_marks(config: ModelConfig, description: EngineDescription) -> None:
    marked = {entry.name for entry in _entries(config) if entry.is_shape_tensor}
    named = {entry.name for entry in _entries(config)}
    for tensor in description.tensors:
        if tensor.name in marked and not tensor.is_shape_tensor:
            raise InvalidArgument(f"'{tensor.name}' is incorrectly specified as a shape tensor.")
        if tensor.name in named - marked and tensor.is_shape_tensor:
            raise InvalidArgument(
                f"model '{config.name}', tensor '{tensor.name}': the engine has a shape tensor of this name; mark it "
                f"with is_shape_tensor: true"
            )


def _entries(config: ModelConfig) -> tuple[ModelInput | ModelOutput, ...]:
    return (*config.input, *config.output)
