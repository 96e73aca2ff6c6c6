"""Tensor signatures of a TensorFlow model, for validation of a configuration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from backends.tensorflow.library import tf
from protocol.datatypes import DataType
from protocol.errors import Unsupported
from repository.completion import TensorSignature
from repository.model_config import Dims, ModelConfig, ModelInput, ModelOutput
from repository.sequence_tensors import control_inputs, hidden_outputs, state_inputs

_DATA_TYPES = {
    tf.bool: DataType.BOOL,
    tf.uint8: DataType.UINT8,
    tf.uint16: DataType.UINT16,
    tf.uint32: DataType.UINT32,
    tf.uint64: DataType.UINT64,
    tf.int8: DataType.INT8,
    tf.int16: DataType.INT16,
    tf.int32: DataType.INT32,
    tf.int64: DataType.INT64,
    tf.float16: DataType.FP16,
    tf.bfloat16: DataType.BF16,
    tf.float32: DataType.FP32,
    tf.float64: DataType.FP64,
    tf.string: DataType.BYTES,
}


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """`name` is the configuration's, `tensor` the graph's (`node:0`). `shape` is None where the rank is not known.
    `type_name` is the library's name of its datatype, `data_type` INVALID where the protocol has none like it."""

    name: str
    tensor: str
    data_type: DataType
    type_name: str
    shape: Dims | None
    # An input that runs without a value, as far as the wanted outputs go.
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ModelTensors:
    inputs: tuple[ModelTensor, ...]
    outputs: tuple[ModelTensor, ...]
    # Whether an output's dimension that the file leaves open may be configured as a number: shapes of a GraphDef are
    # what the library can infer, those of a signature are what its author says.
    has_inferred_outputs: bool = False

    def signature(self, config: ModelConfig) -> tuple[list[TensorSignature], list[TensorSignature]]:
        """For the check of a whole configuration: what the file leaves open is what is configured.

        Raises:
            Unsupported: a tensor that is configured has a datatype that the protocol does not know.
        """
        inputs = (*config.input, *control_inputs(config), *state_inputs(config))
        outputs = (*config.output, *hidden_outputs(config))
        return (
            _signatures(self.inputs, inputs, config, "input", is_inferred=False),
            _signatures(self.outputs, outputs, config, "output", is_inferred=self.has_inferred_outputs),
        )


def described(name: str, tensor: str, dtype: Any, shape: Dims | None, *, optional: bool = False) -> ModelTensor:
    """`dtype` is the library's."""
    found = _DATA_TYPES.get(dtype.base_dtype, DataType.INVALID)
    return ModelTensor(name, tensor, found, dtype.base_dtype.name, shape, optional)


def require_data_type(tensor: ModelTensor, config: ModelConfig, which: str) -> None:
    if tensor.data_type is DataType.INVALID:
        raise Unsupported(
            f"unsupported datatype {tensor.type_name} for {which} '{tensor.name}' for model '{config.name}'"
        )


def _signatures(
    tensors: Iterable[ModelTensor],
    entries: Iterable[ModelInput | ModelOutput],
    config: ModelConfig,
    which: str,
    *,
    is_inferred: bool,
) -> list[TensorSignature]:
    leading = (-1,) if config.is_batching else ()
    configured = {entry.name: (*leading, *entry.backend_dims) for entry in entries}
    found = []
    for tensor in tensors:
        wanted = configured.get(tensor.name)
        if wanted is not None:
            require_data_type(tensor, config, which)
        shape = tensor.shape
        if shape is None:
            shape = wanted or ()
        elif is_inferred and wanted is not None and len(wanted) == len(shape):
            shape = tuple(new if old == -1 else old for old, new in zip(shape, wanted, strict=True))
        found.append(TensorSignature(tensor.name, tensor.data_type, shape, tensor.optional))
    return found
