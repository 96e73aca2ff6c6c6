"""The three models of most formats, and one of trees: their weights, and what they must answer. Only numpy is needed.

- `add_sub`: `OUTPUT0` = `INPUT0` + `INPUT1`, `OUTPUT1` = `INPUT0` - `INPUT1`; rows of 16 numbers.
- `text`: `GREETING` = `Hello, <NAME>!`; one string for each row.
- `image`: `IMAGE` (3 x 32 x 32) through a convolution of stride 2, ReLU, the mean of each channel, a dense layer and
  softmax to `SCORES` of 5 classes.
- `forest`: `input__0` (4 numbers) through 8 decision trees to `output__0`, the mean of what they say of 3 classes; the
  names are those that the backend `fil` has.
"""

from __future__ import annotations

import numpy as np

LENGTH = 16
SIDE = 32
CHANNELS, FILTERS, KERNEL, CLASSES = 3, 8, 3, 5
STRIDE = 2
PADDING = 1
FEATURES, TREES, TREE_CLASSES = 4, 8, 3


class ImageWeights:
    """Always the same numbers: `filters` [8, 3, 3, 3], `filter_bias` [8], `dense` [5, 8], `dense_bias` [5], FP32."""

    def __init__(self) -> None:
        random = np.random.default_rng(7)
        self.filters = random.standard_normal((FILTERS, CHANNELS, KERNEL, KERNEL)).astype(np.float32)
        self.filter_bias = random.standard_normal(FILTERS).astype(np.float32)
        self.dense = random.standard_normal((CLASSES, FILTERS)).astype(np.float32)
        self.dense_bias = random.standard_normal(CLASSES).astype(np.float32)


class Trees:
    """Always the same. Of each tree, for the root and its two children: `features` [8, 3], and `thresholds` [8, 3]
    (FP32), below which a row goes left. `leaves` [8, 4, 3] are probabilities of the classes, from left to right."""

    def __init__(self) -> None:
        random = np.random.default_rng(11)
        self.features = random.integers(FEATURES, size=(TREES, 3))
        self.thresholds = random.random((TREES, 3), dtype=np.float32)
        self.leaves = random.dirichlet([1.0] * TREE_CLASSES, size=(TREES, 4)).astype(np.float32)


def add_sub(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    left, right = inputs["INPUT0"], inputs["INPUT1"]
    return {"OUTPUT0": left + right, "OUTPUT1": left - right}


def text(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Elements are bytes."""
    names = inputs["NAME"]
    greetings = [b"Hello, " + name + b"!" for name in names.reshape(-1)]
    return {"GREETING": np.array(greetings, dtype=np.object_).reshape(names.shape)}


def image(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """In plain numpy: slow, and easy to compare with."""
    weights, images = ImageWeights(), inputs["IMAGE"]
    padded = np.pad(images, ((0, 0), (0, 0), (PADDING, PADDING), (PADDING, PADDING)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (KERNEL, KERNEL), axis=(2, 3))[:, :, ::STRIDE, ::STRIDE]
    maps = np.einsum("nchwij,fcij->nfhw", windows, weights.filters) + weights.filter_bias[:, None, None]
    means = np.maximum(maps, 0).mean(axis=(2, 3))
    logits = means @ weights.dense.T + weights.dense_bias
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return {"SCORES": (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)}


def forest(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    trees, rows = Trees(), inputs["input__0"]
    found = np.zeros((len(rows), TREE_CLASSES), np.float32)
    for features, thresholds, leaves in zip(trees.features, trees.thresholds, trees.leaves, strict=True):
        goes_right = rows[:, features] >= thresholds
        child = np.where(goes_right[:, 0], goes_right[:, 2], goes_right[:, 1])
        found += leaves[2 * goes_right[:, 0] + child]
    return {"output__0": found / TREES}


ANSWERS = {"add_sub": add_sub, "text": text, "image": image, "forest": forest}


def sample(model: str, rows: int) -> dict[str, np.ndarray]:
    """Inputs of a model for so many rows."""
    random = np.random.default_rng(rows)
    if model == "text":
        names = [f"friend {number} of {rows}".encode() for number in range(rows)]
        return {"NAME": np.array(names, dtype=np.object_).reshape(rows, 1)}
    if model == "image":
        return {"IMAGE": random.random((rows, CHANNELS, SIDE, SIDE), dtype=np.float32)}
    if model == "forest":
        return {"input__0": random.random((rows, FEATURES), dtype=np.float32)}
    return {name: random.random((rows, LENGTH), dtype=np.float32) for name in ("INPUT0", "INPUT1")}
