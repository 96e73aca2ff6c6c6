"""Step: ONNX to int8 by ONNX Runtime: weights and activations after calibration, or weights alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from trioton.convert.storage import load_cases
from trioton.convert.tensors import Arrays

_WEIGHTS_ALONE = "onnx-int8-weights"


class _Reader(CalibrationDataReader):  # type: ignore[misc]  # untyped
    def __init__(self, batches: list[Arrays]) -> None:
        self._batches = iter(batches)

    def get_next(self) -> Arrays | None:
        return next(self._batches, None)


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    """`calibration`: cases of rows that the gate does not judge by, where there are enough."""
    target = Path(arguments["target"])
    target.parent.mkdir(parents=True, exist_ok=True)
    prepared = target.with_name("prepared.onnx")
    quant_pre_process(arguments["made_of"], str(prepared), skip_symbolic_shape=True)
    if arguments["kind"] == _WEIGHTS_ALONE:
        quantize_dynamic(str(prepared), str(target), weight_type=QuantType.QInt8)
    else:
        batches = [case.inputs for case in load_cases(Path(arguments["calibration"]))]
        quantize_static(
            str(prepared),
            str(target),
            _Reader(batches),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            weight_type=QuantType.QInt8,
            activation_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
        )
    for left in target.parent.glob("prepared.onnx*"):
        left.unlink()
    onnx.checker.check_model(str(target))
    return {}
