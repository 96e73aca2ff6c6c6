"""Tensor signatures of a session, for completion and validation of configurations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backends.onnxruntime.onnx_file import tensors_without_shape
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, Unsupported
from repository.completion import TensorSignature
from repository.model_config import Dims, ModelConfig, ModelInput, ModelOutput

_DATA_TYPES = {
    "tensor(bool)": DataType.BOOL,
    "tensor(uint8)": DataType.UINT8,
    "tensor(uint16)": DataType.UINT16,
    "tensor(uint32)": DataType.UINT32,
    "tensor(uint64)": DataType.UINT64,
    "tensor(int8)": DataType.INT8,
    "tensor(int16)": DataType.INT16,
    "tensor(int32)": DataType.INT32,
    "tensor(int64)": DataType.INT64,
    "tensor(float16)": DataType.FP16,
    "tensor(float)": DataType.FP32,
    "tensor(double)": DataType.FP64,
    "tensor(string)": DataType.BYTES,
    "tensor(bfloat16)": DataType.BF16,
}
# Numbers of ONNX's TensorProto.DataType.
ONNX_ELEMENT_TYPES = {
    DataType.FP32: 1,
    DataType.UINT8: 2,
    DataType.INT8: 3,
    DataType.UINT16: 4,
    DataType.INT16: 5,
    DataType.INT32: 6,
    DataType.INT64: 7,
    DataType.BYTES: 8,
    DataType.BOOL: 9,
    DataType.FP16: 10,
    DataType.FP64: 11,
    DataType.UINT32: 12,
    DataType.UINT64: 13,
    DataType.BF16: 16,
}
_ONNX_TYPES = {
    "seq": "ONNX_TYPE_SEQUENCE",
    "map": "ONNX_TYPE_MAP",
    "sparse_tensor": "ONNX_TYPE_SPARSETENSOR",
    "optional": "ONNX_TYPE_OPTIONAL",
}


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """The tensors of one model. `scalars` are those of rank 0; `shapeless` those whose rank the file leaves open, and
    their `shape` here is what the configuration says, or empty."""

    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]
    scalars: frozenset[str]
    shapeless: frozenset[str]

    def for_completion(self, config: ModelConfig) -> tuple[list[TensorSignature], list[TensorSignature]]:
        """Inputs and outputs to complete a configuration from. What has no shape in the file must be configured, and
        is no reason to think that the model can batch.

        Raises:
            InvalidArgument: a tensor that the configuration leaves out has no shape in the file.
            Unsupported: such a tensor has a datatype that the protocol does not know.
        """
        required = [tensor for tensor in self.inputs if not tensor.optional]
        for which, tensors, given in (("input", required, config.input), ("output", self.outputs, config.output)):
            for tensor in tensors if not given else ():
                if tensor.name in self.shapeless:
                    raise InvalidArgument(
                        f"autofill failed for model '{config.name}': the model file declares {which} '{tensor.name}' "
                        f"without a shape; give the configuration its own '{which}' list"
                    )
                if tensor.data_type is DataType.INVALID:
                    raise Unsupported(f"unsupported datatype for {which} '{tensor.name}' for model '{config.name}'")
        if config.is_batching:
            return list(self.inputs), list(self.outputs)
        shapeless = self.shapeless
        inputs, outputs = (
            [replace(tensor, shape=()) if tensor.name in shapeless else tensor for tensor in tensors]
            for tensors in (self.inputs, self.outputs)
        )
        return inputs, outputs


def read_signature(session: Any, path: Path, config: ModelConfig) -> ModelSignature:
    """Describe an `onnxruntime.InferenceSession` made from the file `path`.

    Raises:
        Unsupported: an input or output is no dense tensor.
    """
    required, optional, outputs = session.get_inputs(), session.get_overridable_initializers(), session.get_outputs()
    without_shape = frozenset(arg.name for arg in (*required, *optional, *outputs) if not arg.shape)
    shapeless = without_shape & tensors_without_shape(path) if without_shape else without_shape
    input_shapes = _configured_shapes(config, config.input, shapeless)
    output_shapes = _configured_shapes(config, config.output, shapeless)
    return ModelSignature(
        inputs=(
            *(_describe(arg, input_shapes) for arg in required),
            *(_describe(arg, input_shapes, optional=True) for arg in optional),
        ),
        outputs=tuple(_describe(arg, output_shapes) for arg in outputs),
        scalars=without_shape - shapeless,
        shapeless=shapeless,
    )


def _configured_shapes(
    config: ModelConfig, entries: Iterable[ModelInput | ModelOutput], names: frozenset[str]
) -> dict[str, Dims]:
    leading = (-1,) if config.is_batching else ()
    return {entry.name: (*leading, *entry.backend_dims) for entry in entries if entry.name in names}


def _describe(arg: Any, shapes: Mapping[str, Dims], *, optional: bool = False) -> TensorSignature:
    if not arg.type.startswith("tensor("):
        onnx_type = _ONNX_TYPES.get(arg.type.partition("(")[0], "ONNX_TYPE_UNKNOWN")
        raise Unsupported(f"Unsupported ONNX Type '{onnx_type}' for I/O '{arg.name}', expected 'ONNX_TYPE_TENSOR'.")
    return TensorSignature(
        name=arg.name,
        data_type=_DATA_TYPES.get(arg.type, DataType.INVALID),
        # Symbols and unknown dimensions come as names or None.
        shape=shapes.get(arg.name, tuple(dim if isinstance(dim, int) else -1 for dim in arg.shape)),
        optional=optional,
    )
