"""The three models as ONNX files, for the backend `onnxruntime`. Needs the package onnx to write them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import three_models
from onnx import TensorProto, helper, numpy_helper

ADD_SUB = """
backend: "onnxruntime"
max_batch_size: 8
input [
  { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] },
  { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] },
  { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 16 ] }
]
dynamic_batching { }
"""
TEXT = """
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "NAME" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "GREETING" data_type: TYPE_STRING dims: [ 1 ] } ]
dynamic_batching { }
"""
IMAGE = """
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "IMAGE" data_type: TYPE_FP32 dims: [ 3, 32, 32 ] } ]
output [ { name: "SCORES" data_type: TYPE_FP32 dims: [ 5 ] } ]
dynamic_batching { }
"""
# With this version of the operators strings can be concatenated; the file's own version is one that all read.
OPSET, IR_VERSION = 20, 9


def add_sub(folder: Path) -> None:
    vector = ["rows", three_models.LENGTH]
    nodes = [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, vector) for name in ("INPUT0", "INPUT1")]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, vector) for name in ("OUTPUT0", "OUTPUT1")]
    save(folder, ADD_SUB, nodes, inputs, outputs)


def text(folder: Path) -> None:
    nodes = [
        helper.make_node("StringConcat", ["hello", "NAME"], ["begun"]),
        helper.make_node("StringConcat", ["begun", "mark"], ["GREETING"]),
    ]
    constants = [
        helper.make_tensor("hello", TensorProto.STRING, [1], [b"Hello, "]),
        helper.make_tensor("mark", TensorProto.STRING, [1], [b"!"]),
    ]
    inputs = [helper.make_tensor_value_info("NAME", TensorProto.STRING, ["rows", 1])]
    outputs = [helper.make_tensor_value_info("GREETING", TensorProto.STRING, ["rows", 1])]
    save(folder, TEXT, nodes, inputs, outputs, constants)


def image(folder: Path) -> None:
    weights = three_models.ImageWeights()
    nodes = [
        helper.make_node(
            "Conv",
            ["IMAGE", "filters", "filter_bias"],
            ["maps"],
            strides=[three_models.STRIDE] * 2,
            pads=[three_models.PADDING] * 4,
        ),
        helper.make_node("Relu", ["maps"], ["bright"]),
        helper.make_node("GlobalAveragePool", ["bright"], ["squares"]),
        helper.make_node("Flatten", ["squares"], ["means"]),
        helper.make_node("Gemm", ["means", "dense", "dense_bias"], ["logits"], transB=1),
        helper.make_node("Softmax", ["logits"], ["SCORES"]),
    ]
    constants = [numpy_helper.from_array(array, name) for name, array in vars(weights).items()]
    side = three_models.SIDE
    inputs = [helper.make_tensor_value_info("IMAGE", TensorProto.FLOAT, ["rows", three_models.CHANNELS, side, side])]
    outputs = [helper.make_tensor_value_info("SCORES", TensorProto.FLOAT, ["rows", three_models.CLASSES])]
    save(folder, IMAGE, nodes, inputs, outputs, constants)


def save(
    folder: Path,
    config: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Sequence[onnx.TensorProto] = (),
) -> None:
    graph = helper.make_graph(nodes, folder.name, inputs, outputs, constants)
    model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)])
    onnx.checker.check_model(model)
    (folder / "1").mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(folder / "1" / "model.onnx"))
    (folder / "config.pbtxt").write_text(config.lstrip())
