"""Two of the three models as functions of `jax.export`, for the backend `jax`. Needs the packages jax and flatbuffers.

The file tells datatypes and shapes, and names where arguments are keywords and results a dictionary, so a model needs
no `config.pbtxt` but for what it does not tell; here it is written out. The number of rows must be a symbol. There are
no strings in JAX, so there is no `text`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import three_models
from jax import export

ADD_SUB = """
backend: "jax"
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
backend: "jax"
max_batch_size: 8
input [ { name: "IMAGE" data_type: TYPE_FP32 dims: [ 3, 32, 32 ] } ]
output [ { name: "SCORES" data_type: TYPE_FP32 dims: [ 5 ] } ]
dynamic_batching { }
"""


def add_sub(folder: Path) -> None:
    def function(*, INPUT0: jax.Array, INPUT1: jax.Array) -> dict[str, jax.Array]:  # noqa: N803
        return {"OUTPUT0": INPUT0 + INPUT1, "OUTPUT1": INPUT0 - INPUT1}

    shape = export.symbolic_shape(f"rows, {three_models.LENGTH}")
    vector = jax.ShapeDtypeStruct(shape, np.float32)
    save(folder, export_of(function, INPUT0=vector, INPUT1=vector), ADD_SUB)


def image(folder: Path) -> None:
    weights = three_models.ImageWeights()

    def function(*, IMAGE: jax.Array) -> dict[str, jax.Array]:  # noqa: N803
        strides, padding = [three_models.STRIDE] * 2, [(three_models.PADDING, three_models.PADDING)] * 2
        maps = jax.lax.conv_general_dilated(IMAGE, weights.filters, strides, padding)
        bright = jax.nn.relu(maps + weights.filter_bias[:, None, None])
        logits = bright.mean(axis=(2, 3)) @ weights.dense.T + weights.dense_bias
        return {"SCORES": jax.nn.softmax(logits, axis=1)}

    side = three_models.SIDE
    shape = export.symbolic_shape(f"rows, {three_models.CHANNELS}, {side}, {side}")
    save(folder, export_of(function, IMAGE=jax.ShapeDtypeStruct(shape, np.float32)), IMAGE)


def export_of(function: Callable[..., object], **arguments: jax.ShapeDtypeStruct) -> export.Exported:
    """For CPUs and NVIDIA GPUs, whatever this machine has."""
    return export.export(jax.jit(function), platforms=["cpu", "cuda"])(**arguments)


def save(folder: Path, exported: export.Exported, config: str) -> None:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1" / "model.jax").write_bytes(exported.serialize())
    (folder / "config.pbtxt").write_text(config.lstrip())
