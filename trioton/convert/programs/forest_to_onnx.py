"""Step: a forest of XGBoost or LightGBM to ONNX, by onnxmltools, with the tensors of the fil backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxmltools
from onnxmltools.convert.common.data_types import FloatTensorType

from trioton.convert.programs.forest_source import INPUT, OUTPUT
from trioton.convert.programs.loading import description_of, source_of
from trioton.convert.programs.onnx_outputs import keep_outputs, save
from trioton.convert.sources import Source, SourceKind

_OPSET = 15  # the newest that it writes
_VALUES = ("probabilities", "variable")


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    [spec] = description_of(arguments).inputs
    made = _converted(source_of(arguments), [(INPUT, FloatTensorType([None, *spec.dims]))])
    names = [output.name for output in made.graph.output if output.name in _VALUES]
    save(keep_outputs(made, dict.fromkeys(names, OUTPUT)), Path(arguments["target"]))
    return {}


def _converted(source: Source, types: list[tuple[str, FloatTensorType]]) -> onnx.ModelProto:
    common = {"initial_types": types, "target_opset": _OPSET}
    if source.kind is SourceKind.XGBOOST:
        import xgboost

        made = onnxmltools.convert_xgboost(xgboost.Booster(model_file=source.path), **common)
    else:
        import lightgbm

        made = onnxmltools.convert_lightgbm(lightgbm.Booster(model_file=source.path), zipmap=False, **common)
    assert isinstance(made, onnx.ModelProto)
    return made
