"""Builds the model repository that the tests serve: the Python models in `models/`, and ONNX models made here."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

PYTHON_MODELS = Path(__file__).parent / "models"

# Every datatype of the protocol with its ONNX element type; the tensors bear the datatypes' names.
ONNX_TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
    "BF16": TensorProto.BFLOAT16,
}
# BF16 is apart: a Python model cannot have it as a numpy array, onnxruntime cannot have it beside strings.
NUMPY_TYPES = tuple(name for name in ONNX_TYPES if name != "BF16")


def build_repository(directory: Path) -> None:
    """All models that the tests use, each of which loads."""
    shutil.copytree(PYTHON_MODELS, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (directory / "python_types" / "config.pbtxt").write_text(types_config("python", NUMPY_TYPES))
    add_types(directory / "onnx_types", NUMPY_TYPES)
    add_types(directory / "onnx_bf16", ("BF16",))
    add_add_sub(directory / "add_sub", versions=(1, 2))
    add_add_sub(directory / "loadable", versions=(1,))


def copy_python_model(name: str, directory: Path) -> None:
    shutil.copytree(PYTHON_MODELS / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))


def add_types(model: Path, types: Sequence[str]) -> None:
    """One input and one output of each datatype, one-dimensional and of any length; outputs equal inputs."""
    nodes = [helper.make_node("Identity", [f"IN_{name}"], [name]) for name in types]
    inputs, outputs = (
        [helper.make_tensor_value_info(prefix + name, ONNX_TYPES[name], [name]) for name in types]
        for prefix in ("IN_", "")
    )
    save(nodes, inputs, outputs, model / "1" / "model.onnx")
    (model / "config.pbtxt").write_text(types_config("onnxruntime", types, input_prefix="IN_"))


def types_config(backend: str, types: Sequence[str], *, input_prefix: str = "") -> str:
    def tensors(prefix: str) -> str:
        return ", ".join(
            f'{{ name: "{prefix}{name}" data_type: TYPE_{name.replace("BYTES", "STRING")} dims: [ -1 ] }}'
            for name in types
        )

    return f'backend: "{backend}"\ninput [ {tensors(input_prefix)} ]\noutput [ {tensors("")} ]\n'


def add_add_sub(model: Path, *, versions: Sequence[int]) -> None:
    """OUTPUT0 = INPUT0 + INPUT1 and OUTPUT1 = INPUT0 - INPUT1; version 2 subtracts the other way round.

    Every version is served, batches of up to 8 are formed, and the tensors are for the server to find out.
    """
    for version in versions:
        minuend, subtrahend = ("INPUT0", "INPUT1") if version == 1 else ("INPUT1", "INPUT0")
        nodes = [
            helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
            helper.make_node("Sub", [minuend, subtrahend], ["OUTPUT1"]),
        ]
        inputs, outputs = (
            [helper.make_tensor_value_info(f"{word}{i}", TensorProto.FLOAT, ["batch", 16]) for i in (0, 1)]
            for word in ("INPUT", "OUTPUT")
        )
        save(nodes, inputs, outputs, model / str(version) / "model.onnx")
    (model / "config.pbtxt").write_text(
        'backend: "onnxruntime"\nmax_batch_size: 8\nversion_policy { all { } }\ndynamic_batching { }\n'
        "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
        'metric_tags { key: "team" value: "e2e" }\n'
    )


def save(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    file: Path,
    *,
    initializers: Sequence[onnx.TensorProto] = (),
) -> None:
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializer=initializers)
    # Versions that every onnxruntime of the last years reads.
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    file.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(file))
