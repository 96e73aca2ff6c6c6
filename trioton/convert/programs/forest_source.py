"""Forests of XGBoost, LightGBM and treelite, with the tensors of the fil backend: by the library that has made them, or
where that is missing, by treelite."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trioton.convert.sources import Source, SourceKind
from trioton.convert.tensors import Array, Arrays, TensorSpec

INPUT, OUTPUT = "input__0", "output__0"
_PROBABILITIES = {"is_classifier": "true", "predict_proba": "true"}
_SCORES = {"is_classifier": "false"}


@dataclass(frozen=True, slots=True)
class _Library:
    """`predict` takes rows and answers [rows] or [rows, classes]; `is_wide`: it computes in float64."""

    name: str
    feature_count: int
    has_probabilities: bool
    predict: Callable[[Array], Array]
    is_wide: bool


def load(source: Source) -> ForestSource:
    readers = {SourceKind.XGBOOST: ("xgboost", _xgboost), SourceKind.LIGHTGBM: ("lightgbm", _lightgbm)}
    name, reader = readers.get(source.kind, ("treelite", _treelite))
    if importlib.util.find_spec(name) is None:
        reader = _treelite
    return ForestSource(reader(source))


class ForestSource:
    def __init__(self, library: _Library) -> None:
        self._library = library
        self.parameters: Mapping[str, str] = _PROBABILITIES if library.has_probabilities else _SCORES

    def inputs(self) -> Sequence[TensorSpec]:
        return [TensorSpec(INPUT, "FP32", ("batch", self._library.feature_count))]

    def answer(self, inputs: Arrays, *, is_wide: bool) -> Arrays:
        if is_wide and not self._library.is_wide:
            raise NotImplementedError(f"{self._library.name} computes this forest in float32")
        found = self._library.predict(inputs[INPUT]).reshape(len(inputs[INPUT]), -1)
        if self._library.has_probabilities and found.shape[1] == 1:
            found = np.concatenate([1 - found, found], axis=1)
        return {OUTPUT: found if is_wide else found.astype(np.float32)}


def _xgboost(source: Source) -> _Library:
    import json

    import xgboost

    booster = xgboost.Booster(model_file=source.path)
    objective = json.loads(booster.save_config())["learner"]["objective"]["name"]

    def predict(rows: Array) -> Array:
        found: Array = booster.predict(xgboost.DMatrix(rows), output_margin=objective == "multi:softmax")
        return _softmax(found) if objective == "multi:softmax" else found

    has_probabilities = objective in ("binary:logistic", "multi:softprob", "multi:softmax")
    return _Library("xgboost", booster.num_features(), has_probabilities, predict, is_wide=False)


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    found: Array = powers / powers.sum(axis=1, keepdims=True)
    return found


def _lightgbm(source: Source) -> _Library:
    import lightgbm

    booster = lightgbm.Booster(model_file=source.path)
    objective = str(booster.dump_model().get("objective", "")).split(" ")[0]

    def predict(rows: Array) -> Array:
        return np.asarray(booster.predict(rows.astype(np.float64)))

    return _Library("lightgbm", booster.num_feature(), objective in ("binary", "multiclass"), predict, is_wide=True)


def _treelite(source: Source) -> _Library:
    import treelite

    model = _read(source, treelite)
    header = model.get_header_accessor()
    last_step = str(header.get_field("postprocessor"))
    is_wide = model.input_type == "float64"

    def predict(rows: Array) -> Array:
        return np.asarray(treelite.gtil.predict(model, rows.astype(np.float64 if is_wide else np.float32)))

    return _Library("treelite", int(model.num_feature), last_step in ("sigmoid", "softmax"), predict, is_wide)


def _read(source: Source, treelite: Any) -> Any:
    path = Path(source.path)
    if source.kind is SourceKind.TREELITE:
        return treelite.Model.deserialize(path)
    if source.kind is SourceKind.LIGHTGBM:
        return treelite.frontend.load_lightgbm_model(path)
    if source.filename == "xgboost.model":
        return treelite.frontend.load_xgboost_model_legacy_binary(path)
    kind = "json" if source.filename == "xgboost.json" else "ubjson"
    return treelite.frontend.load_xgboost_model(path, format_choice=kind)
