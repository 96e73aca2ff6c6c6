"""Step: ONNX as ONNX Runtime rewrites it when it loads: joined operators, folded constants, for any processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    target = Path(arguments["target"])
    target.parent.mkdir(parents=True, exist_ok=True)
    options = onnxruntime.SessionOptions()
    # The level above is for the processor that it runs on.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(target)
    onnxruntime.InferenceSession(arguments["made_of"], options, providers=["CPUExecutionProvider"])
    return {}
