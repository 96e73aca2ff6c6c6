"""ONNX sources: in float64 by the evaluator of the package `onnx`, else by ONNX Runtime without optimisation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from protocol.datatypes import from_numpy_dtype
from trioton.convert.sources import Source
from trioton.convert.tensors import Arrays, TensorSpec

_NARROW, _WIDE = TensorProto.FLOAT, TensorProto.DOUBLE


def load(source: Source) -> OnnxSource:
    return OnnxSource(Path(source.path))


class OnnxSource:
    parameters: Mapping[str, str] = {}

    def __init__(self, path: Path) -> None:
        self._path = path
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._evaluator: Any = None

    def inputs(self) -> Sequence[TensorSpec]:
        graph = onnx.load(str(self._path), load_external_data=False).graph
        constants = {each.name for each in graph.initializer}
        return [_spec(value) for value in graph.input if value.name not in constants]

    def answer(self, inputs: Arrays, *, is_wide: bool) -> Arrays:
        given = {name: array.astype(object) if array.dtype.kind == "U" else array for name, array in inputs.items()}
        if not is_wide:
            found = self._session.run(self._outputs, given)
        else:
            if self._evaluator is None:
                self._evaluator = ReferenceEvaluator(widened(onnx.load(str(self._path))))
            wide = {name: each.astype(np.float64) if each.dtype == np.float32 else each for name, each in given.items()}
            found = self._evaluator.run(self._outputs, wide)
        return {name: np.asarray(array) for name, array in zip(self._outputs, found, strict=True)}


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float64 for every float32: weights, constants, conversions, inputs and outputs."""
    _widen(model.graph)
    for function in model.functions:
        _widen_nodes(function.node)
    return model


def _widen(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == _NARROW:
            value.type.tensor_type.elem_type = _WIDE
    _widen_nodes(graph.node)


def _widen_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == _NARROW:
                attribute.i = _WIDE
            if attribute.HasField("t"):
                _widen_tensor(attribute.t)
            if attribute.HasField("g"):
                _widen(attribute.g)
            for graph in attribute.graphs:
                _widen(graph)


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type == _NARROW:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise ValueError(f"input '{value.name}' is no tensor of a known rank")
    datatype = from_numpy_dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    if kind.elem_type == TensorProto.STRING:
        name = "BYTES"
    elif datatype is None:
        raise ValueError(f"input '{value.name}' is of a datatype that the protocol does not have")
    else:
        name = datatype.name
    dims = tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{value.name}_{axis}"
        for axis, dim in enumerate(kind.shape.dim)
    )
    return TensorSpec(value.name, name, dims)
