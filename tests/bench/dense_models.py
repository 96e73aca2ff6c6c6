"""A model that keeps one core busy, in the formats whose batching efficiency is measured, and their direct calls.

A row of X is put at many positions and goes through dense layers: 100 million multiplications for each row, of few
weights, so that what counts is computing and not memory. All formats have the same weights.
"""

from __future__ import annotations

import abc
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import jax
import jax.export
import numpy as np
import onnx
import onnxruntime
import openvino
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from openvino import opset13 as ops

from backends.jax.process_settings import PROCESS_SETTINGS, DeviceSettings
from backends.onnxruntime.options import read_options, session_options
from backends.openvino.options import read_options as read_openvino_options
from repository.pbtxt import parse_pbtxt

Rows: TypeAlias = NDArray[np.float32]

BATCH = 16
WIDTH, POSITIONS, LAYERS = 256, 128, 12
CONFIG = f"""
max_batch_size: {BATCH}
input [ {{ name: "X" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]
output [ {{ name: "Y" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]
dynamic_batching {{ }}
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""


class Weights:
    """`positions` [128, 256], and `layers` of [256, 256]."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        constants = [(POSITIONS, WIDTH), *[(WIDTH, WIDTH)] * LAYERS]
        arrays = [(random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32) for shape in constants]
        self.positions, self.layers = arrays[0], arrays[1:]


class DenseFormat(abc.ABC):
    """The model in one format. One core computes; the others are for the server and its clients."""

    name: ClassVar[str]
    config: ClassVar[str]
    # What the server must be told besides, so that one core computes.
    flags: ClassVar[tuple[str, ...]] = ()

    def write(self, repository: Path) -> None:
        """The model `name` in a repository."""
        folder = repository / self.name
        (folder / "1").mkdir(parents=True, exist_ok=True)
        self.save(folder / "1")
        (folder / "config.pbtxt").write_text(self.config)

    @abc.abstractmethod
    def save(self, folder: Path) -> None:
        """The model's file, into a version's folder."""

    @abc.abstractmethod
    def open(self, repository: Path) -> Any:
        """What maps rows to rows as the server's instance does, without the server."""


class DenseOnnx(DenseFormat):
    name = "onnx"
    config = (
        f'backend: "onnxruntime"{CONFIG}parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}\n'
    )

    def save(self, folder: Path) -> None:
        weights = Weights()
        constants = [
            numpy_helper.from_array(weights.positions, "positions"),
            numpy_helper.from_array(np.array([1]), "axis"),
        ]
        nodes = [
            helper.make_node("Unsqueeze", ["X", "axis"], ["x"]),
            helper.make_node("Add", ["x", "positions"], ["layer_0"]),
        ]
        for layer, array in enumerate(weights.layers):
            constants.append(numpy_helper.from_array(array, f"weights_{layer}"))
            nodes.append(helper.make_node("MatMul", [f"layer_{layer}", f"weights_{layer}"], [f"sums_{layer}"]))
            nodes.append(helper.make_node("Relu", [f"sums_{layer}"], [f"layer_{layer + 1}"]))
        nodes.append(helper.make_node("ReduceMean", [f"layer_{LAYERS}"], ["Y"], axes=[1], keepdims=0))
        tensor = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT, shape=["rows", WIDTH])
        graph = helper.make_graph(nodes, "dense", [tensor("X")], [tensor("Y")], constants)
        made = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
        onnx.save(made, str(folder / "model.onnx"))

    def open(self, repository: Path) -> Any:
        options = session_options(read_options(parse_pbtxt(self.config, source="config.pbtxt")))
        path = repository / self.name / "1" / "model.onnx"
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return lambda rows: session.run(["Y"], {"X": rows})[0]


class DenseModule(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        weights = Weights()
        self.positions = torch.nn.Parameter(torch.from_numpy(weights.positions))
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in weights.layers)
        for layer, array in zip(self.layers, weights.layers, strict=True):
            layer.weight = torch.nn.Parameter(torch.from_numpy(array.T.copy()))

    def forward(self, X: torch.Tensor) -> torch.Tensor:  # noqa: N803 (the input's name)
        x = X.unsqueeze(1) + self.positions
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.mean(dim=1)


class DenseTorchScript(DenseFormat):
    name = "torchscript"
    config = f'backend: "pytorch"{CONFIG}parameters {{ key: "INTRA_OP_THREAD_COUNT" value {{ string_value: "1" }} }}\n'

    def save(self, folder: Path) -> None:
        torch.jit.script(DenseModule().eval()).save(str(folder / "model.pt"))  # type: ignore[no-untyped-call]

    def open(self, repository: Path) -> Any:
        module = self.load(repository / self.name / "1")

        def run(rows: Rows) -> Rows:
            torch.set_num_threads(1)
            with torch.inference_mode():
                found: Rows = module(torch.from_numpy(rows)).numpy()
            return found

        return run

    def load(self, folder: Path) -> Any:
        return torch.jit.load(str(folder / "model.pt"))  # type: ignore[no-untyped-call]


class DenseExported(DenseTorchScript):
    name = "torch_export"

    def save(self, folder: Path) -> None:
        rows = torch.export.Dim("rows")
        program = torch.export.export(DenseModule().eval(), (torch.zeros(2, WIDTH),), dynamic_shapes=({0: rows},))
        torch.export.save(program, folder / "model.pt2")

    def load(self, folder: Path) -> Any:
        return torch.export.load(folder / "model.pt2").module()


class DenseOpenVino(DenseFormat):
    name = "openvino"
    config = f'backend: "openvino"{CONFIG}parameters {{ key: "INFERENCE_NUM_THREADS" value {{ string_value: "1" }} }}\n'

    def save(self, folder: Path) -> None:
        weights = Weights()
        rows = ops.parameter([-1, WIDTH], openvino.Type.f32)
        rows.output(0).set_names({"X"})
        x = ops.add(ops.unsqueeze(rows, np.array([1])), weights.positions)
        for array in weights.layers:
            x = ops.relu(ops.matmul(x, array, False, False))
        mean = ops.reduce_mean(x, np.array([1]), keep_dims=False)
        mean.output(0).set_names({"Y"})
        openvino.save_model(openvino.Model([mean], [rows], "dense"), str(folder / "model.xml"), compress_to_fp16=False)

    def open(self, repository: Path) -> Any:
        options = read_openvino_options(parse_pbtxt(self.config, source="config.pbtxt"))
        path = repository / self.name / "1" / "model.xml"
        request = openvino.compile_model(path, options.device, options.properties).create_infer_request()
        return lambda rows: request.infer([rows], share_inputs=True)[0]


class DenseJax(DenseFormat):
    name = "jax"
    config = f'backend: "jax"{CONFIG}'
    flags = ("--backend-config=jax,cpu-threads=1",)

    def save(self, folder: Path) -> None:
        # The direct calls are made in this process, whose threads the library counts when it is first used.
        PROCESS_SETTINGS.apply(DeviceSettings(cpu_thread_count=1), self.name)
        weights = Weights()

        def function(*, X: jax.Array) -> dict[str, jax.Array]:  # noqa: N803 (the input's name)
            x = X[:, None] + weights.positions
            for array in weights.layers:
                x = jax.nn.relu(x @ array)
            return {"Y": x.mean(axis=1)}

        rows = jax.ShapeDtypeStruct(jax.export.symbolic_shape(f"rows, {WIDTH}"), np.float32)
        (folder / "model.jax").write_bytes(jax.export.export(jax.jit(function))(X=rows).serialize())

    def open(self, repository: Path) -> Any:
        PROCESS_SETTINGS.apply(DeviceSettings(cpu_thread_count=1), self.name)
        path = repository / self.name / "1" / "model.jax"
        function = jax.jit(jax.export.deserialize(bytearray(path.read_bytes())).call)

        @cache
        def compiled(rows: int) -> Any:
            shape = jax.ShapeDtypeStruct((rows, WIDTH), np.float32)
            return function.lower(X=shape).compile()

        return lambda rows: np.asarray(compiled(len(rows))(X=rows)["Y"])


FORMATS: tuple[DenseFormat, ...] = (DenseOnnx(), DenseTorchScript(), DenseExported(), DenseOpenVino(), DenseJax())
