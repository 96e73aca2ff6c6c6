"""The three models as TensorFlow's GraphDefs, for the backend `tensorflow`: each graph of `tensorflow_format`, frozen.

Variables become constants of the graph. Its inputs are the nodes that are Placeholders; any other may be an output, so
the configuration must name them all. Needs the package tensorflow.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
import tensorflow_format
import three_models
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2


def add_sub(folder: Path) -> None:
    def compute(INPUT0: tf.Tensor, INPUT1: tf.Tensor) -> list[tf.Tensor]:  # noqa: N803
        return [tf.add(INPUT0, INPUT1, "OUTPUT0"), tf.subtract(INPUT0, INPUT1, "OUTPUT1")]

    rows = [tf.TensorSpec([None, three_models.LENGTH], tf.float32, name) for name in ("INPUT0", "INPUT1")]
    save(folder, tensorflow_format.ADD_SUB, compute, *rows)


def text(folder: Path) -> None:
    def compute(NAME: tf.Tensor) -> tf.Tensor:  # noqa: N803
        return tf.strings.join(["Hello, ", NAME, "!"], name="GREETING")

    save(folder, tensorflow_format.TEXT, compute, tf.TensorSpec([None, 1], tf.string, "NAME"))


def image(folder: Path) -> None:
    network = tensorflow_format.Network()

    def compute(IMAGE: tf.Tensor) -> tf.Tensor:  # noqa: N803
        return tf.identity(network(IMAGE), "SCORES")

    shape = [None, three_models.CHANNELS, three_models.SIDE, three_models.SIDE]
    save(folder, tensorflow_format.IMAGE, compute, tf.TensorSpec(shape, tf.float32, "IMAGE"))


def save(folder: Path, config: str, compute: Callable[..., Any], *inputs: tf.TensorSpec) -> None:
    """The names of the arguments, and of the operations that make the results, are those of the nodes."""
    function = tf.function(compute, input_signature=inputs).get_concrete_function()
    frozen = convert_variables_to_constants_v2(function).graph.as_graph_def()
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1" / "model.graphdef").write_bytes(frozen.SerializeToString())
    (folder / "config.pbtxt").write_text(config.lstrip().replace("tensorflow_savedmodel", "tensorflow_graphdef"))
