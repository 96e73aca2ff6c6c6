"""Two of the three models as TensorRT plans, for the backend `tensorrt`: ONNX files, built into engines. Needs the
packages tensorrt and onnx, and the NVIDIA GPU that the engines are for. Not seen running.

TensorRT has no strings, so there is no `text`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx_format
import tensorrt as trt
import three_models

# One profile for both: from one row to eight, best at four.
ROWS = (1, 4, 8)
LOGGER = trt.Logger(trt.Logger.WARNING)


def add_sub(folder: Path) -> None:
    builder = new_builder()
    onnx_format.add_sub(folder)
    vector = [three_models.LENGTH]
    build_plan(builder, folder, {"INPUT0": vector, "INPUT1": vector})


def image(folder: Path) -> None:
    builder = new_builder()
    onnx_format.image(folder)
    build_plan(builder, folder, {"IMAGE": [three_models.CHANNELS, three_models.SIDE, three_models.SIDE]})


def new_builder() -> trt.Builder:
    """Raises ImportError where there is no GPU: it is missing as a package can be."""
    try:
        return trt.Builder(LOGGER)
    except Exception as error:
        raise ImportError(f"TensorRT builds engines only on an NVIDIA GPU with its driver: {error}") from error


def build_plan(builder: trt.Builder, folder: Path, shapes: dict[str, Sequence[int]]) -> None:
    """Put an engine in the place of the ONNX file. `shapes` are those of the inputs, without the batch."""
    onnx_file, config_file = folder / "1" / "model.onnx", folder / "config.pbtxt"
    network = builder.create_network()
    parser = trt.OnnxParser(network, LOGGER)
    if not parser.parse(onnx_file.read_bytes()):
        raise ValueError("; ".join(str(parser.get_error(index)) for index in range(parser.num_errors)))
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    for name, shape in shapes.items():
        profile.set_shape(name, *((rows, *shape) for rows in ROWS))
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise ValueError(f"TensorRT could not build {folder.name}")
    (folder / "1" / "model.plan").write_bytes(plan)
    onnx_file.unlink()
    config_file.write_text(config_file.read_text().replace('backend: "onnxruntime"', 'platform: "tensorrt_plan"'))
