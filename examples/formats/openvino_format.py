"""Two of the three models as OpenVINO's own files (IR), for the backend `openvino`. Needs the package openvino.

The library has no operators for strings, so there is no `text`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import three_models
from openvino import opset13 as ops

ADD_SUB = """
backend: "openvino"
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
IMAGE = """
backend: "openvino"
max_batch_size: 8
input [ { name: "IMAGE" data_type: TYPE_FP32 dims: [ 3, 32, 32 ] } ]
output [ { name: "SCORES" data_type: TYPE_FP32 dims: [ 5 ] } ]
dynamic_batching { }
"""


def add_sub(folder: Path) -> None:
    left, right = (tensor(name, [-1, three_models.LENGTH], "NC") for name in ("INPUT0", "INPUT1"))
    outputs = [
        result("OUTPUT0", ops.add(left, right), "NC"),
        result("OUTPUT1", ops.subtract(left, right), "NC"),
    ]
    save(folder, ADD_SUB, outputs, [left, right])


def image(folder: Path) -> None:
    weights = three_models.ImageWeights()
    images = tensor("IMAGE", [-1, three_models.CHANNELS, three_models.SIDE, three_models.SIDE], "NCHW")
    strides, padding = [three_models.STRIDE] * 2, [three_models.PADDING] * 2
    maps = ops.convolution(images, weights.filters, strides, padding, padding, [1, 1])
    bright = ops.relu(ops.add(maps, weights.filter_bias.reshape(1, -1, 1, 1)))
    means = ops.reduce_mean(bright, np.array([2, 3]), keep_dims=False)
    logits = ops.add(ops.matmul(means, weights.dense, False, True), weights.dense_bias)
    save(folder, IMAGE, [result("SCORES", ops.softmax(logits, 1), "NC")], [images])


def tensor(name: str, shape: Sequence[int], layout: str) -> Any:
    """An input. Its layout (N is the batch) lets the configuration be completed to one that batches."""
    made = ops.parameter(shape, ov.Type.f32, name=name)
    made.output(0).set_names({name})
    made.set_layout(ov.Layout(layout))
    return made


def result(name: str, node: Any, layout: str) -> Any:
    node.output(0).set_names({name})
    made = ops.result(node)
    made.set_layout(ov.Layout(layout))
    return made


def save(folder: Path, config: str, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    model = ov.Model(list(outputs), list(inputs), folder.name)
    ov.save_model(model, str(folder / "1" / "model.xml"), compress_to_fp16=False)
    (folder / "config.pbtxt").write_text(config.lstrip())
