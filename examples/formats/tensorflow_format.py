"""The three models as TensorFlow's SavedModels, for the backend `tensorflow`. Needs the package tensorflow.

The function's arguments and the keys of its result are the names of inputs and outputs; a first dimension of None is
the batch. The file tells all that, so a model needs no `config.pbtxt` but for what it does not tell; here it is written
out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
import three_models

ADD_SUB = """
platform: "tensorflow_savedmodel"
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
platform: "tensorflow_savedmodel"
max_batch_size: 8
input [ { name: "NAME" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "GREETING" data_type: TYPE_STRING dims: [ 1 ] } ]
dynamic_batching { }
"""
IMAGE = """
platform: "tensorflow_savedmodel"
max_batch_size: 8
input [ { name: "IMAGE" data_type: TYPE_FP32 dims: [ 3, 32, 32 ] } ]
output [ { name: "SCORES" data_type: TYPE_FP32 dims: [ 5 ] } ]
dynamic_batching { }
"""


class Network(tf.Module):
    """The weights are variables, which a SavedModel keeps beside its graph."""

    def __init__(self) -> None:
        super().__init__()
        weights = three_models.ImageWeights()
        self.filters = tf.Variable(weights.filters.transpose(2, 3, 1, 0))  # height, width, channels, filters
        self.filter_bias = tf.Variable(weights.filter_bias)
        self.dense = tf.Variable(weights.dense.T)
        self.dense_bias = tf.Variable(weights.dense_bias)

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        edge = [three_models.PADDING] * 2
        # The library convolves with the channels last.
        padded = tf.pad(tf.transpose(images, [0, 2, 3, 1]), [[0, 0], edge, edge, [0, 0]])
        maps = tf.nn.conv2d(padded, self.filters, three_models.STRIDE, "VALID") + self.filter_bias
        means = tf.reduce_mean(tf.nn.relu(maps), axis=[1, 2])
        return tf.nn.softmax(means @ self.dense + self.dense_bias)


def add_sub(folder: Path) -> None:
    def compute(INPUT0: tf.Tensor, INPUT1: tf.Tensor) -> dict[str, tf.Tensor]:  # noqa: N803
        return {"OUTPUT0": INPUT0 + INPUT1, "OUTPUT1": INPUT0 - INPUT1}

    rows = [tf.TensorSpec([None, three_models.LENGTH], tf.float32, name) for name in ("INPUT0", "INPUT1")]
    save(folder, ADD_SUB, tf.Module(), compute, *rows)


def text(folder: Path) -> None:
    def compute(NAME: tf.Tensor) -> dict[str, tf.Tensor]:  # noqa: N803
        return {"GREETING": tf.strings.join(["Hello, ", NAME, "!"])}

    save(folder, TEXT, tf.Module(), compute, tf.TensorSpec([None, 1], tf.string, "NAME"))


def image(folder: Path) -> None:
    network = Network()

    def compute(IMAGE: tf.Tensor) -> dict[str, tf.Tensor]:  # noqa: N803
        return {"SCORES": network(IMAGE)}

    shape = [None, three_models.CHANNELS, three_models.SIDE, three_models.SIDE]
    save(folder, IMAGE, network, compute, tf.TensorSpec(shape, tf.float32, "IMAGE"))


def save(folder: Path, config: str, module: tf.Module, compute: Callable[..., Any], *inputs: tf.TensorSpec) -> None:
    """`module` has the variables that `compute` reads."""
    function = tf.function(compute, input_signature=inputs)
    tf.saved_model.save(module, str(folder / "1" / "model.savedmodel"), {"serving_default": function})
    (folder / "config.pbtxt").write_text(config.lstrip())
