"""Files of the backend `fil`: what XGBoost and LightGBM save, and checkpoints of treelite."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tests.backends.conformance.format import Arrays, Contradiction, Direct, Format
from tests.backends.fil.forests import CLASSES, FEATURES, lightgbm_booster, training_rows, xgboost_booster

CONFIG = """
backend: "fil"
max_batch_size: 8
input [ {{ name: "input__0" data_type: TYPE_FP32 dims: [ {features} ] }} ]
output [ {{ name: "output__0" data_type: TYPE_FP32 dims: [ {classes} ] }} ]
parameters [
  {{ key: "model_type" value {{ string_value: "{model_type}" }} }},
  {{ key: "is_classifier" value {{ string_value: "true" }} }},
  {{ key: "predict_proba" value {{ string_value: "true" }} }}
]
dynamic_batching {{ }}
"""


class FilFormat(Format):
    """What all files have in common: a classifier that answers probabilities. `save` trains and writes it, and `call`
    is the framework on the file."""

    backend = "fil"
    models: ClassVar[frozenset[str]] = frozenset()
    example = "forest_format"
    framework: ClassVar[tuple[str, ...]] = ("treelite",)
    install = r"needs the treelite package: pip install 'trioton\[forests\]'"
    minimal_config = 'backend: "fil" parameters { key: "predict_proba" value { string_value: "true" } }'
    contradictions = (
        Contradiction(
            'input__0" data_type: TYPE_FP32',
            'input__0" data_type: TYPE_FP64',
            "configuration expects datatype TYPE_FP64 for input 'input__0', model provides TYPE_FP32",
        ),
        Contradiction('"input__0"', '"rows"', "unexpected inference input 'rows', allowed inputs are: input__0"),
        Contradiction('"output__0"', '"other"', "unexpected inference output 'other', allowed outputs are: output__0"),
        Contradiction(f"dims: [ {FEATURES} ]", "dims: [ 17 ]", "tensor 'input__0': the model expects 2 dimensions"),
        Contradiction(f"dims: [ {CLASSES} ]", "dims: [ 2 ]", "tensor 'output__0': the model expects 2 dimensions"),
        Contradiction("max_batch_size: 8", "max_batch_size: 0", "expected max_batch_size > 0, got 0"),
        Contradiction(
            '"is_classifier" value { string_value: "true"',
            '"is_classifier" value { string_value: "yes"',
            "failed to convert 'yes' to boolean",
        ),
    )
    model_type: ClassVar[str]
    filename: ClassVar[str]

    @property
    def broken(self) -> str:  # type: ignore[override]
        return f"'{self.filename}' cannot be read as {self.model_type}: "

    def rows_model(self, folder: Path) -> None:
        (folder / "1").mkdir(parents=True, exist_ok=True)
        self.save(folder / "1" / self.filename)
        config = CONFIG.format(features=FEATURES, classes=CLASSES, model_type=self.model_type)
        (folder / "config.pbtxt").write_text(config.lstrip())

    def direct(self, folder: Path) -> Direct:
        path = folder / "1" / self.filename

        def run(inputs: Arrays) -> Arrays:
            return {"output__0": np.asarray(self.call(path, inputs["input__0"]), np.float32)}

        return run

    def save(self, path: Path) -> None:
        raise NotImplementedError

    def call(self, path: Path, rows: Any) -> Any:
        raise NotImplementedError


class XgboostJsonFormat(FilFormat):
    name = "xgboost_json"
    packages = ("treelite", "xgboost")
    model_type = "xgboost_json"
    filename = "xgboost.json"

    def save(self, path: Path) -> None:
        xgboost_booster("multi:softprob").save_model(path)

    def call(self, path: Path, rows: Any) -> Any:
        import xgboost

        return xgboost.Booster(model_file=str(path)).predict(xgboost.DMatrix(rows))


class XgboostUbjFormat(XgboostJsonFormat):
    name = "xgboost_ubj"
    model_type = "xgboost_ubj"
    filename = "xgboost.ubj"


class LightGbmFormat(FilFormat):
    name = "lightgbm"
    packages = ("treelite", "lightgbm")
    model_type = "lightgbm"
    filename = "model.txt"

    def save(self, path: Path) -> None:
        lightgbm_booster("multiclass").save_model(path)

    def call(self, path: Path, rows: Any) -> Any:
        import lightgbm

        return lightgbm.Booster(model_file=str(path)).predict(rows)


class CheckpointFormat(FilFormat):
    """Of a forest of scikit-learn, which has the forest's probabilities itself. The example's own model is one, too."""

    name = "treelite_checkpoint"
    packages = ("treelite", "sklearn")
    models: ClassVar[frozenset[str]] = frozenset({"forest"})
    model_type = "treelite_checkpoint"
    filename = "checkpoint.tl"

    def save(self, path: Path) -> None:
        import treelite.sklearn
        from sklearn.ensemble import RandomForestClassifier

        rows, labels = training_rows()
        trained = RandomForestClassifier(n_estimators=10, max_depth=4, random_state=0).fit(rows, labels)
        treelite.sklearn.import_model(trained).serialize(path)

    def call(self, path: Path, rows: Any) -> Any:
        import treelite

        return treelite.gtil.predict(treelite.Model.deserialize(path), rows)[:, 0]
