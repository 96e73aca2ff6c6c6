"""Forests for the tests, trained in a moment: always the same, with one thread."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FEATURES, CLASSES = 5, 3


def training_rows(classes: int = CLASSES) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rows and their classes."""
    random = np.random.default_rng(3)
    rows = random.standard_normal((200, FEATURES)).astype(np.float32)
    labels = np.digitize(rows[:, 0] + rows[:, 1], np.linspace(-1, 1, classes + 1)[1:-1])
    return rows, labels


def xgboost_booster(objective: str, **parameters: Any) -> Any:
    import xgboost

    classes = CLASSES if objective.startswith("multi:") else 2
    rows, labels = training_rows(classes)
    settings = {"objective": objective, "max_depth": 3, "nthread": 1, "seed": 0, **parameters}
    if classes > 2:
        settings["num_class"] = classes
    return xgboost.train(settings, xgboost.DMatrix(rows, labels), 5)


def lightgbm_booster(objective: str, **parameters: Any) -> Any:
    import lightgbm

    classes = CLASSES if objective.startswith("multiclass") else 2
    rows, labels = training_rows(classes)
    settings = {"objective": objective, "num_threads": 1, "verbose": -1, "seed": 0, "min_data_in_leaf": 5}
    settings |= parameters
    if classes > 2:
        settings["num_class"] = classes
    return lightgbm.train(settings, lightgbm.Dataset(rows, labels), 5)
