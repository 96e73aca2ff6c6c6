"""OpenVINO model files: loading, reshaping, and tensor signatures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from openvino import layout_helpers
from openvino.preprocess import PrePostProcessor

from backends.interface import ModelSource
from backends.openvino.errors import load_errors
from backends.openvino.options import OpenVinoOptions
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, Unavailable, Unsupported
from repository.completion import TensorSignature
from repository.model_config import Dims, ModelConfig, ModelInput, ModelOutput
from repository.sequence_tensors import control_inputs, hidden_outputs, state_inputs
from repository.shape_rules import generated_inputs

MODEL_FILE = "model.xml"
# The library's Python interface has no arrays for strings and bfloat16.
_DATA_TYPES = {
    "boolean": DataType.BOOL,
    "u8": DataType.UINT8,
    "u16": DataType.UINT16,
    "u32": DataType.UINT32,
    "u64": DataType.UINT64,
    "i8": DataType.INT8,
    "i16": DataType.INT16,
    "i32": DataType.INT32,
    "i64": DataType.INT64,
    "f16": DataType.FP16,
    "f32": DataType.FP32,
    "f64": DataType.FP64,
}
_ELEMENT_TYPES = {data_type: getattr(openvino.Type, name) for name, data_type in _DATA_TYPES.items()}


def _prepare_conversions() -> None:
    """Make the library's tables of datatypes, which it does at their first use, giving the GIL away meanwhile: two
    threads that come to that at the same time would wait for each other for ever. Imports are made by one thread."""
    for shares in (True, False):
        made = openvino.Tensor(np.zeros(1, np.float32), shared_memory=shares)
        assert made.element_type.to_dtype() == made.data.dtype
    assert openvino.Tensor(openvino.Type.f32, openvino.Shape([1])).data.size == 1
    assert openvino.Type(np.float32) == openvino.Type.f32


_prepare_conversions()


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """Inputs and outputs in the model's own order, by the configuration's names where it names them."""

    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]
    # Every tensor says by its layout that its first dimension is the batch.
    has_batch_layout: bool

    @property
    def scalars(self) -> frozenset[str]:
        return frozenset(tensor.name for tensor in (*self.inputs, *self.outputs) if not tensor.shape)


def model_path(source: ModelSource) -> Path:
    """The model's file, or a SavedModel's directory.

    Raises:
        Unavailable: there is none.
    """
    path = source.version_directory / (source.config.default_model_filename or MODEL_FILE)
    if not path.exists():
        raise Unavailable(f"unable to find '{path}' for model '{source.name}'")
    return path


def read_model(core: Any, source: ModelSource, options: OpenVinoOptions) -> Any:
    """The `openvino.Model` of a file, with the shapes that it is to be compiled with.

    Where nothing says how many rows a batch has (completion), a model whose layouts say that it can batch has any.
    """
    config = source.config
    path = model_path(source)
    with load_errors(source.name, "reading model"):
        model = core.read_model(str(path))
    for port in (*model.inputs, *model.outputs):
        layout = port.node.layout
        if config.is_batching and layout_helpers.has_batch(layout) and layout_helpers.batch_idx(layout) != 0:
            raise InvalidArgument(
                f"model '{source.name}', tensor '{_name(port, ())}': expected the batch as first dimension because "
                f"max_batch_size > 0, got layout {layout}"
            )
    is_batched = config.is_batching or _completes_batch(model, config, options)
    shapes = {}
    for index, port in enumerate(model.inputs):
        shape = _wanted_shape(port, config, options, is_batched=is_batched)
        if shape is not None and shape != port.partial_shape:
            shapes[index] = shape
    if shapes:
        step = "setting max batch size" if config.is_batching else "reshaping model"
        with load_errors(source.name, step):
            model.reshape(shapes)
    return model


def describe(model: Any, config: ModelConfig, options: OpenVinoOptions) -> ModelTensors:
    """The tensors of a model from `read_model`.

    Datatypes are those of the configuration where it has some: values are converted at the boundary.

    Raises:
        InvalidArgument: a tensor has no name; or its rank is open, and the configuration does not say it.
        Unsupported: a datatype that neither the protocol nor the configuration can give.
    """
    inputs = (*config.input, *control_inputs(config), *state_inputs(config))
    outputs = (*config.output, *hidden_outputs(config))
    generated = generated_inputs(config)
    return ModelTensors(
        tuple(_signature(port, config, options, inputs, generated, "input") for port in model.inputs),
        tuple(_signature(port, config, options, outputs, (), "output") for port in model.outputs),
        _has_batch_layout(model),
    )


def with_datatypes(model: Any, tensors: ModelTensors) -> Any:
    """The model with conversions to the datatypes of its described tensors, where it has others itself."""
    processor = PrePostProcessor(model)
    differs = False
    for ports, described, steps in (
        (model.inputs, tensors.inputs, processor.input),
        (model.outputs, tensors.outputs, processor.output),
    ):
        for index, (port, tensor) in enumerate(zip(ports, described, strict=True)):
            wanted = _ELEMENT_TYPES[tensor.data_type]
            if port.element_type != wanted:
                steps(index).tensor().set_element_type(wanted)
                differs = True
    return processor.build() if differs else model


def _completes_batch(model: Any, config: ModelConfig, options: OpenVinoOptions) -> bool:
    is_open = config.max_batch_size == 0 and not (config.input and config.output)
    return is_open and not options.skips_dynamic_batch and _has_batch_layout(model)


def _has_batch_layout(model: Any) -> bool:
    layouts = [port.node.layout for port in (*model.inputs, *model.outputs)]
    return bool(model.inputs) and all(
        layout_helpers.has_batch(layout) and layout_helpers.batch_idx(layout) == 0 for layout in layouts
    )


def _wanted_shape(port: Any, config: ModelConfig, options: OpenVinoOptions, *, is_batched: bool) -> Any:
    """None where the model's own shape is to stay."""
    shape = port.partial_shape
    dims: list[Any] | None = None if shape.rank.is_dynamic else list(shape)
    if options.takes_configured_dims:
        entry = next((entry for entry in config.input if entry.name in port.names), None)
        if entry is not None:
            if 0 in entry.backend_dims:
                raise InvalidArgument(
                    "openvino backend does not support dimensions values other than `-1` or positive integers "
                    f"(model '{config.name}', input '{entry.name}')"
                )
            first = [-1] if config.is_batching else []
            dims = [openvino.Dimension(dim) for dim in (*first, *entry.backend_dims)]
    if dims and is_batched:
        is_batch = (
            dims[0].is_dynamic
            or dims[0].get_length() in (1, config.max_batch_size)
            or layout_helpers.has_batch(port.node.layout)
        )
        if is_batch:
            has_number = options.has_fixed_batch and config.is_batching
            dims[0] = openvino.Dimension(config.max_batch_size if has_number else -1)
    return None if dims is None else openvino.PartialShape(dims)


def _name(port: Any, configured: Collection[str]) -> str:
    """A tensor may have several names: the one that the configuration has, or else the first."""
    names = sorted(port.names)
    return next((name for name in names if name in configured), names[0] if names else "")


def _signature(
    port: Any,
    config: ModelConfig,
    options: OpenVinoOptions,
    entries: Sequence[ModelInput | ModelOutput],
    generated: Iterable[str],
    which: str,
) -> TensorSignature:
    by_name = {entry.name: entry for entry in entries}
    name = _name(port, {*by_name, *generated})
    if not name:
        raise InvalidArgument(
            f"model '{config.name}': {which} {port.get_index()} of the model file has no name; give it one with "
            f"set_names before the file is saved"
        )
    entry = by_name.get(name)
    found = _DATA_TYPES.get(port.element_type.to_string(), DataType.INVALID)
    data_type = found if entry is None else entry.data_type
    if data_type not in _ELEMENT_TYPES or port.element_type == openvino.Type.string:
        told = data_type.value if data_type is not DataType.INVALID else port.element_type.to_string()
        raise Unsupported(f"unsupported datatype {told} for {which} '{name}' for model '{config.name}'")
    return TensorSignature(name, data_type, _shape(port, name, entry, config, options))


def _shape(
    port: Any, name: str, entry: ModelInput | ModelOutput | None, config: ModelConfig, options: OpenVinoOptions
) -> Dims:
    if not port.partial_shape.rank.is_dynamic:
        shape = tuple(-1 if dim.is_dynamic else dim.get_length() for dim in port.partial_shape)
        # A model of one number of rows batches: other numbers are filled up, or refused by the backend.
        is_fixed_batch = options.has_fixed_batch and config.is_batching and shape[:1] == (config.max_batch_size,)
        return (-1, *shape[1:]) if is_fixed_batch else shape
    if entry is None:
        raise InvalidArgument(
            f"model '{config.name}': the model file declares '{name}' without a shape; list it in the configuration"
        )
    return (*((-1,) if config.is_batching else ()), *entry.backend_dims)
