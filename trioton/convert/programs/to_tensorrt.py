"""Step: ONNX to a plan of TensorRT, for the GPU of this machine. Not seen running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorrt as trt

from trioton.convert.storage import load_cases

_FP16 = "tensorrt-fp16"

Shape = tuple[int, ...]


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    """The plan takes the shapes of the cases, and all between."""
    target = Path(arguments["target"])
    target.parent.mkdir(parents=True, exist_ok=True)
    log = trt.Logger(trt.Logger.INFO)
    builder = trt.Builder(log)
    network = builder.create_network()
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(arguments["made_of"]):  # weights may lie beside it
        raise ValueError("; ".join(str(parser.get_error(index)) for index in range(parser.num_errors)))
    config = builder.create_builder_config()
    _set_precision(config, is_narrow=arguments["kind"] == _FP16)
    profile = builder.create_optimization_profile()
    for name, ranges in shape_ranges([case.inputs for case in load_cases(Path(arguments["cases"]))]).items():
        profile.set_shape(name, *ranges)
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise ValueError("TensorRT has built nothing; the log says why")
    target.write_bytes(plan)
    return {}


def _set_precision(config: Any, *, is_narrow: bool) -> None:
    """Float32 is computed as such, not in TF32. Raises ValueError: this TensorRT takes types from the model alone."""
    config.clear_flag(trt.BuilderFlag.TF32)
    if not is_narrow:
        return
    if not hasattr(trt.BuilderFlag, "FP16"):  # since version 11
        raise ValueError(f"TensorRT {trt.__version__} computes in the types of the model: convert one in float16")
    config.set_flag(trt.BuilderFlag.FP16)


def shape_ranges(asked: Sequence[Mapping[str, np.ndarray[Any, Any]]]) -> dict[str, tuple[Shape, Shape, Shape]]:
    """By input: the smallest, usual and greatest sizes; the usual are the greatest."""
    found = {}
    for name in asked[0]:
        shapes = np.array([inputs[name].shape for inputs in asked])
        least, most = (tuple(int(size) for size in sizes) for sizes in (shapes.min(axis=0), shapes.max(axis=0)))
        found[name] = (least, most, most)
    return found
