"""Step: an estimator or pipeline of scikit-learn to ONNX, by skl2onnx."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import skl2onnx
import sklearn.base
from skl2onnx.common import data_types

from trioton.convert.programs.loading import description_of, source_of
from trioton.convert.programs.onnx_outputs import keep_outputs, save
from trioton.convert.programs.sklearn_source import load_estimator
from trioton.convert.tensors import TensorSpec

_OPSET = 17
_TYPES = {
    "FP32": data_types.FloatTensorType,
    "FP64": data_types.DoubleTensorType,
    "INT64": data_types.Int64TensorType,
    "INT32": data_types.Int32TensorType,
    "BOOL": data_types.BooleanTensorType,
    "BYTES": data_types.StringTensorType,
}


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    estimator = load_estimator(source_of(arguments))
    types = [(spec.name, _type_of(spec)) for spec in description_of(arguments).inputs]
    options = {id(estimator): {"zipmap": False}} if sklearn.base.is_classifier(estimator) else None
    made = skl2onnx.convert_sklearn(estimator, initial_types=types, options=options, target_opset=_OPSET)
    save(keep_outputs(made, {name: name for name in arguments["outputs"]}), Path(arguments["target"]))
    return {}


def _type_of(spec: TensorSpec) -> Any:
    if spec.datatype not in _TYPES:
        raise ValueError(f"input '{spec.name}': skl2onnx knows no {spec.datatype}, but {', '.join(_TYPES)}")
    return _TYPES[spec.datatype]([None, *spec.dims])
