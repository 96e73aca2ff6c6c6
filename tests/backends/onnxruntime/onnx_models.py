"""ONNX files for the tests, small and made on the spot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import onnx
from onnx import TensorProto, helper

from protocol.datatypes import DataType

# None: no shape is declared; a string is a symbolic dimension.
Shape: TypeAlias = Sequence[int | str | None] | None

ELEMENT_TYPES = {
    DataType.BOOL: TensorProto.BOOL,
    DataType.UINT8: TensorProto.UINT8,
    DataType.UINT16: TensorProto.UINT16,
    DataType.UINT32: TensorProto.UINT32,
    DataType.UINT64: TensorProto.UINT64,
    DataType.INT8: TensorProto.INT8,
    DataType.INT16: TensorProto.INT16,
    DataType.INT32: TensorProto.INT32,
    DataType.INT64: TensorProto.INT64,
    DataType.FP16: TensorProto.FLOAT16,
    DataType.FP32: TensorProto.FLOAT,
    DataType.FP64: TensorProto.DOUBLE,
    DataType.BYTES: TensorProto.STRING,
    DataType.BF16: TensorProto.BFLOAT16,
}


def tensor(name: str, shape: Shape, datatype: DataType = DataType.FP32) -> Any:
    """The declaration of a graph's input or output."""
    return helper.make_tensor_value_info(name, ELEMENT_TYPES[datatype], shape)


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    return helper.make_node(operator, inputs, outputs, **attributes)


def model(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], initializers: Sequence[Any] = ()) -> Any:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, list(initializers))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8  # newer ones are not loaded by every onnxruntime
    return made


def identity(shape: Shape, datatype: DataType = DataType.FP32) -> Any:
    """Y = X."""
    return model([node("Identity", ["X"], ["Y"])], [tensor("X", shape, datatype)], [tensor("Y", shape, datatype)])


def counting() -> Any:
    """Y = X + N, one by one: takes as long as N wants."""
    body = helper.make_graph(
        [node("Identity", ["go"], ["goes"]), node("Add", ["sum", "one"], ["more"])],
        "body",
        [tensor("round", [], DataType.INT64), tensor("go", [], DataType.BOOL), tensor("sum", None)],
        [tensor("goes", [], DataType.BOOL), tensor("more", None)],
        [helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])],
    )
    nodes = [node("ReduceMax", ["N"], ["count"], keepdims=0), node("Loop", ["count", "", "X"], ["Y"], body=body)]
    inputs = [tensor("X", ["rows", 1]), tensor("N", ["rows", 1], DataType.INT64)]
    return model(nodes, inputs, [tensor("Y", ["rows", 1])])


def save(made: Any, directory: Path, filename: str = "model.onnx", **options: Any) -> Path:
    """Write it as version 1 of the model in `directory`; returns that directory."""
    path = directory / "1" / filename
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(made, str(path), **options)
    return directory
