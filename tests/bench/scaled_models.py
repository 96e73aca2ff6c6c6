"""Repositories of many small models: half of them ONNX, half `model.py`, for the benchmarks of scale."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

# By kind: the configuration's lines beside inputs and outputs.
KINDS = {
    "onnx": 'backend: "onnxruntime"\n',
    "python": 'backend: "python"\n',
    "in_process": 'backend: "python"\nparameters { key: "ISOLATION" value { string_value: "in_process" } }\n',
    "in_loop": 'backend: "python"\nparameters { key: "ISOLATION" value { string_value: "in_loop" } }\n',
}
TENSORS = """max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: 16 }
output { name: "OUT" data_type: TYPE_FP32 dims: 16 }
instance_group { count: 1 kind: KIND_CPU }
"""
MODEL = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in arrays]
"""


def add_models(directory: Path, count: int, kinds: Sequence[str]) -> list[str]:
    """Make so many models of these kinds in turn, and return their names."""
    content = _onnx_model() if "onnx" in kinds else b""
    names = []
    for index in range(count):
        kind = kinds[index % len(kinds)]
        names.append(f"{kind}_{index:05}")
        version = directory / names[-1] / "1"
        version.mkdir(parents=True)
        if kind == "onnx":
            (version / "model.onnx").write_bytes(content)
        else:
            (version / "model.py").write_text(MODEL)
        (version.parent / "config.pbtxt").write_text(KINDS[kind] + TENSORS)
    return names


def _onnx_model() -> bytes:
    """A layer of 16 by 16, of some 1 kB."""
    from onnx import TensorProto, helper

    nodes = [helper.make_node("MatMul", ["IN", "weights"], ["OUT"])]
    weights = helper.make_tensor("weights", TensorProto.FLOAT, [16, 16], [float(i % 7) for i in range(256)])
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 16])] for name in ("IN", "OUT")
    )
    graph = helper.make_graph(nodes, "layer", inputs, outputs, [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())
