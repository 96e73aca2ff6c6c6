"""Small models as OpenVINO's own files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from protocol.datatypes import DataType

ELEMENT_TYPES = {
    DataType.BOOL: ov.Type.boolean,
    DataType.UINT8: ov.Type.u8,
    DataType.UINT16: ov.Type.u16,
    DataType.UINT32: ov.Type.u32,
    DataType.INT8: ov.Type.i8,
    DataType.INT16: ov.Type.i16,
    DataType.INT32: ov.Type.i32,
    DataType.FP16: ov.Type.f16,
    DataType.FP32: ov.Type.f32,
}


def tensor(name: str, shape: Sequence[Any], element_type: Any = ov.Type.f32, layout: str = "") -> Any:
    made = ops.parameter(ov.PartialShape(list(shape)), element_type)
    if name:
        made.output(0).set_names({name})
    if layout:
        made.set_layout(ov.Layout(layout))
    return made


def save(folder: Path, inputs: Sequence[Any], outputs: Mapping[str, Any], *, layout: str = "") -> Path:
    """Write version 1 of a model; its file."""
    results = []
    for name, node in outputs.items():
        node.output(0).set_names({name} if name else set())
        results.append(ops.result(node))
        if layout:
            results[-1].set_layout(ov.Layout(layout))
    (folder / "1").mkdir(parents=True, exist_ok=True)
    path = folder / "1" / "model.xml"
    ov.save_model(ov.Model(results, list(inputs), "m"), str(path), compress_to_fp16=False)
    return path


def identity(folder: Path, shape: Sequence[Any], element_type: Any = ov.Type.f32) -> Path:
    """`Y` = `X`, through an operator."""
    x = tensor("X", shape, element_type)
    return save(folder, [x], {"Y": ops.reshape(x, ops.shape_of(x), False)})


def sum_of(folder: Path, shape: Sequence[Any], *, layout: str = "") -> Path:
    """`SUM` = `A` + `B`."""
    a, b = tensor("A", shape, layout=layout), tensor("B", shape, layout=layout)
    return save(folder, [a, b], {"SUM": ops.add(a, b)}, layout=layout)


def long_running(folder: Path, width: int = 256, layers: int = 100) -> Path:
    """`Y` [rows, width] from `X` through many layers."""
    x = tensor("X", [-1, width])
    weights = np.eye(width, dtype=np.float32) * 0.5
    found = x
    for layer in range(layers):
        found = ops.tanh(ops.matmul(found, weights + layer * 1e-6, False, False))
    return save(folder, [x], {"Y": found})
