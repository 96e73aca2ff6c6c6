"""A small ONNX classifier with two outputs of one shape, and the ways to get it wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

FEATURES, CLASSES = 16, 6


def classifier(*, scale: float = 1.0, batch: int | str = "batch", shape: tuple[int, int] = (-1, 8)) -> onnx.ModelProto:
    """scores = (relu(x A) reshaped) B, and features of as many elements. `scale` is that of A; `shape` is what the
    middle is reshaped to."""
    generator = np.random.default_rng(1)
    weights: dict[str, NDArray[np.generic]] = {
        "A": (generator.standard_normal((FEATURES, 8)) / 4 * scale).astype(np.float32),
        "B": (generator.standard_normal((8, CLASSES)) / 3).astype(np.float32),
        "C": (generator.standard_normal((8, CLASSES)) / 3).astype(np.float32),
        "shape": np.array(shape, np.int64),
        "bias": generator.standard_normal(8).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "A"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["positive"]),
        helper.make_node("Reshape", ["positive", "shape"], ["middle"]),
        helper.make_node("MatMul", ["middle", "B"], ["scores"]),
        helper.make_node("MatMul", ["middle", "C"], ["features"]),
    ]
    return model(nodes, weights, batch)


def model(
    nodes: list[onnx.NodeProto], weights: dict[str, NDArray[np.generic]], batch: int | str = "batch"
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, FEATURES])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, CLASSES]) for name in ("scores", "features")],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made


def outputs_swapped() -> onnx.ModelProto:
    made = classifier()
    for node in made.graph.node:
        node.output[:] = [{"scores": "features", "features": "scores"}.get(name, name) for name in node.output]
    return made


def in_training_mode() -> onnx.ModelProto:
    """As a batch normalisation that was exported in training mode: by the means of each batch."""
    made = classifier()
    nodes = list(made.graph.node)
    weights = {each.name: numpy_helper.to_array(each) for each in made.graph.initializer}
    nodes[3].input[0] = "normal"
    nodes[3:3] = [
        helper.make_node("ReduceMean", ["positive"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["positive", "mean"], ["normal"]),
    ]
    return model(nodes, weights)


def with_noise() -> onnx.ModelProto:
    """As a module that is random also when it is not trained. (ONNX Runtime leaves dropouts out in any mode.)"""
    made = classifier()
    weights = {each.name: numpy_helper.to_array(each) for each in made.graph.initializer}
    nodes = list(made.graph.node)
    nodes[3].input[0] = "noisy"
    nodes[3:3] = [
        helper.make_node("RandomNormalLike", ["positive"], ["noise"], scale=0.01),
        helper.make_node("Add", ["positive", "noise"], ["noisy"]),
    ]
    return model(nodes, weights)


def samples(rows: int = 40) -> NDArray[np.float32]:
    return np.random.default_rng(2).standard_normal((rows, FEATURES)).astype(np.float32)


def save(made: onnx.ModelProto, path: Path) -> Path:
    onnx.save(made, str(path))
    return path


def quantised(source: Path, target: Path, calibration: NDArray[np.float32]) -> Path:
    """To int8 by ONNX Runtime, with activations as wide as in the calibration."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # untyped
        def __init__(self) -> None:
            self.rows: Iterator[NDArray[np.float32]] = iter(calibration)

        def get_next(self) -> dict[str, NDArray[np.float32]] | None:
            row = next(self.rows, None)
            return None if row is None else {"x": row[None]}

    quantize_static(str(source), str(target), Reader(), quant_format=QuantFormat.QDQ)
    return target
