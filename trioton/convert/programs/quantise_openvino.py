"""Step: ONNX or a SavedModel to OpenVINO in int8, weights and activations, by NNCF after calibration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nncf
import openvino

from trioton.convert.storage import load_cases


def _whole_ranges() -> Any:
    """Activations as wide as any sample has them. By default it is the mean over the samples of each one's greatest,
    which cuts off much of what single rows have (cosine 0.96 in place of 0.9999 in a small classifier)."""
    ranges = nncf.quantization.range_estimator.RangeEstimatorParametersSet.MINMAX
    return nncf.AdvancedQuantizationParameters(activations_range_estimator_params=ranges)


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    """`calibration`: cases of rows that the gate does not judge by, where there are enough."""
    target = Path(arguments["target"])
    target.parent.mkdir(parents=True, exist_ok=True)
    batches = [case.inputs for case in load_cases(Path(arguments["calibration"]))]
    model = openvino.convert_model(arguments["made_of"])
    quantised = nncf.quantize(
        model, nncf.Dataset(batches), subset_size=len(batches), advanced_parameters=_whole_ranges()
    )
    openvino.save_model(quantised, str(target), compress_to_fp16=False)
    return {}
