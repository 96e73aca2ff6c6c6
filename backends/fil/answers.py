"""Post-processing of forest scores: class ids, probabilities, or raw scores, as the configuration asks."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.fil.forest import Forest
from backends.fil.options import ForestOptions


class Answer(enum.Enum):
    SCORES = "scores"
    CLASS = "class"  # its number, as FP32
    PROBABILITIES = "probabilities"  # one for each class
    POSITIVE = "positive"  # of two classes, the second's


@dataclass(frozen=True, slots=True)
class Answering:
    """How a model answers; `width` is the number of elements in a row."""

    answer: Answer
    width: int
    threshold: float

    def of(self, scores: NDArray[Any]) -> NDArray[np.float32]:
        """The answers [rows, width] to scores [rows, classes]."""
        if self.answer is Answer.CLASS:
            return self._classes(scores).astype(np.float32)[:, None]
        if self.answer is Answer.POSITIVE:
            scores = scores[:, -1:]
        elif self.answer is Answer.PROBABILITIES and scores.shape[1] == 1:
            scores = np.concatenate([1 - scores, scores], axis=1)
        return np.ascontiguousarray(scores, dtype=np.float32)

    def _classes(self, scores: NDArray[Any]) -> NDArray[Any]:
        is_binary = scores.shape[1] <= 2
        found: NDArray[Any] = scores[:, -1] > self.threshold if is_binary else scores.argmax(axis=1)
        return found


def answering(forest: Forest, options: ForestOptions, wanted_width: int | None) -> Answering:
    """How a forest answers by the configuration; `wanted_width` is that of the configured output, None if there is
    none. Where nothing says whether it is a classifier, its file does."""
    is_classifier = forest.is_classifier if options.is_classifier is None else options.is_classifier
    if not is_classifier:
        return Answering(Answer.SCORES, forest.class_count, options.threshold)
    if not options.predict_proba:
        return Answering(Answer.CLASS, 1, options.threshold)
    if forest.class_count <= 2 and wanted_width == 1:
        return Answering(Answer.POSITIVE, 1, options.threshold)
    return Answering(Answer.PROBABILITIES, max(2, forest.class_count), options.threshold)
