"""A loaded forest: its metadata and its predictions."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import treelite
from numpy.typing import NDArray

from protocol.errors import Unsupported

# Up to so many walks from a root to a leaf (rows times trees) other threads cost more time than they save.
_WALKS_OF_ONE_THREAD = 20_000


class _Task(enum.IntEnum):
    """treelite's `TaskType`, as its files hold it."""

    BINARY_CLASSIFIER = 0
    REGRESSOR = 1
    MULTI_CLASSIFIER = 2
    RANKER = 3
    ISOLATION_FOREST = 4


class Forest:
    """Trees over `feature_count` numbers of a row, for `class_count` scores: one for a regressor, and for most
    classifiers of two classes. It is never changed, so any thread may use it."""

    def __init__(self, model: treelite.Model, *, name: str) -> None:
        """Raises Unsupported for a model with several targets; `name` is for the text."""
        header = model.get_header_accessor()
        targets = int(header.get_field("num_target")[0])
        if targets != 1:
            raise Unsupported(f"model '{name}': Multi-target model not supported; it has {targets} targets")
        self._model = model
        self.feature_count = int(model.num_feature)
        self.class_count = int(header.get_field("num_class")[0])
        self._tree_count = int(model.num_tree)
        self.is_classifier = int(header.get_field("task_type")[0]) in (_Task.BINARY_CLASSIFIER, _Task.MULTI_CLASSIFIER)

    def scores(self, rows: NDArray[Any], thread_count: int | None) -> NDArray[Any]:
        """For [rows, features], the scores [rows, classes] in the model's own precision, after its last step (a
        sigmoid, a softmax, an average). Missing values are NaN. `thread_count` is the largest number of threads, None
        for one on each core."""
        is_small = rows.shape[0] * self._tree_count <= _WALKS_OF_ONE_THREAD
        threads = 1 if is_small else thread_count or -1
        found: NDArray[Any] = np.asarray(treelite.gtil.predict(self._model, rows, nthread=threads))
        return found.reshape(rows.shape[0], self.class_count)
