"""Pickles of scikit-learn: estimators and pipelines, as matrices of numbers or as columns with names of their own.

Reading a pickle runs what is in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import joblib
import numpy as np

from trioton.convert.sources import Source
from trioton.convert.tensors import Array, Arrays, TensorSpec

INPUT = "input"
# As skl2onnx calls them.
LABEL, PROBABILITIES, VALUES = "label", "probabilities", "variable"


def load(source: Source) -> SklearnSource:
    return SklearnSource(load_estimator(source))


def load_estimator(source: Source) -> Any:
    """It reads plain pickles, too."""
    estimator = joblib.load(source.path)
    if not hasattr(estimator, "predict") and not hasattr(estimator, "transform"):
        raise ValueError(f"the pickle holds no model of scikit-learn: {type(estimator).__name__}")
    return estimator


class SklearnSource:
    parameters: Mapping[str, str] = {}

    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator

    def inputs(self) -> Sequence[TensorSpec]:
        """A model that was trained with named columns takes each as an input of its own."""
        names = getattr(self._estimator, "feature_names_in_", None)
        if names is not None:
            return [TensorSpec(str(name), "", ()) for name in names]
        return [TensorSpec(INPUT, "FP32", ("batch", int(self._estimator.n_features_in_)))]

    def answer(self, inputs: Arrays, *, is_wide: bool) -> Arrays:
        if is_wide:
            inputs = {
                name: each.astype(np.float64) if each.dtype == np.float32 else each for name, each in inputs.items()
            }
        rows = inputs[INPUT] if inputs.keys() == {INPUT} else _table(inputs)
        found = self._answers(rows)
        return {name: array if is_wide else _narrow(array) for name, array in found.items()}

    def _answers(self, rows: Any) -> Arrays:
        estimator = self._estimator
        if not hasattr(estimator, "predict"):
            return {VALUES: _dense(estimator.transform(rows))}
        predicted = np.asarray(estimator.predict(rows))
        if np.issubdtype(predicted.dtype, np.floating):
            return {VALUES: predicted.reshape(len(predicted), -1)}
        found = {LABEL: predicted.astype(np.str_) if predicted.dtype.kind in "OSU" else predicted.astype(np.int64)}
        if hasattr(estimator, "predict_proba"):
            found[PROBABILITIES] = np.asarray(estimator.predict_proba(rows))
        return found


def _table(inputs: Arrays) -> Any:
    import pandas

    return pandas.DataFrame({name: array.reshape(len(array)) for name, array in inputs.items()})


def _dense(found: Any) -> Array:
    return np.asarray(found.toarray() if hasattr(found, "toarray") else found)


def _narrow(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype == np.float64 else array
