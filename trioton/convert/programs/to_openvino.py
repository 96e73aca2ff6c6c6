"""Step: ONNX or a SavedModel to OpenVINO, with weights in float32 or float16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openvino

_NARROW = "openvino-fp16"


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    """`made_of`: the file that is read."""
    target = Path(arguments["target"])
    target.parent.mkdir(parents=True, exist_ok=True)
    model = openvino.convert_model(arguments["made_of"])
    openvino.save_model(model, str(target), compress_to_fp16=arguments["kind"] == _NARROW)
    return {}
