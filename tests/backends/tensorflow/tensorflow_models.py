"""Small models as SavedModels and GraphDefs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from backends.tensorflow.library import tf, v1
from protocol.datatypes import DataType

DTYPES = {
    DataType.BOOL: tf.bool,
    DataType.UINT8: tf.uint8,
    DataType.UINT16: tf.uint16,
    DataType.UINT32: tf.uint32,
    DataType.UINT64: tf.uint64,
    DataType.INT8: tf.int8,
    DataType.INT16: tf.int16,
    DataType.INT32: tf.int32,
    DataType.INT64: tf.int64,
    DataType.FP16: tf.float16,
    DataType.BF16: tf.bfloat16,
    DataType.FP32: tf.float32,
    DataType.FP64: tf.float64,
    DataType.BYTES: tf.string,
}


def spec(name: str, shape: Sequence[int | None] | None, dtype: Any = tf.float32) -> Any:
    return tf.TensorSpec(shape, dtype, name=name)


def saved_model(
    folder: Path, compute: Callable[..., Mapping[str, Any]], *inputs: Any, module: Any = None, name: str = ""
) -> Path:
    """Write version 1 of a model, whose only signature maps `inputs` by `compute`; its directory. `module` owns what
    variables and tables there are."""
    path = folder / "1" / "model.savedmodel"
    owner = tf.Module() if module is None else module
    function = tf.function(compute, input_signature=inputs)
    tf.saved_model.save(owner, str(path), signatures={name or "serving_default": function})
    return path


def graph_def(folder: Path, build: Callable[[], object]) -> Path:
    """Write version 1 of a model, the graph that `build` makes; its file."""
    graph = tf.Graph()
    with graph.as_default():
        build()
    path = folder / "1" / "model.graphdef"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(graph.as_graph_def().SerializeToString())
    return path


def placeholder(name: str, shape: Sequence[int | None] | None, dtype: Any = tf.float32) -> Any:
    return v1.placeholder(dtype, shape, name=name)


def sum_of(folder: Path, shape: Sequence[int | None] | None = (None, 3), dtype: Any = tf.float32) -> Path:
    """A SavedModel, `SUM` = `A` + `B`."""
    return saved_model(folder, lambda A, B: {"SUM": A + B}, spec("A", shape, dtype), spec("B", shape, dtype))  # noqa: N803


def sum_graph(folder: Path, shape: Sequence[int | None] | None = (None, 3)) -> Path:
    """A GraphDef, `SUM` = `A` + `B`."""
    return graph_def(folder, lambda: tf.add(placeholder("A", shape), placeholder("B", shape), name="SUM"))
