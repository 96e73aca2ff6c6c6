"""The backend `linear`: y = x @ weights + bias, with weights and bias in a JSON file."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trioton.backends import ArrayBackend, ModelSource, Signature, TensorSignature
from trioton.errors import InvalidArgument
from trioton.messages import DataType


def read_model(source: ModelSource) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    try:
        numbers = json.loads(source.model_file.read_text())
        return np.array(numbers["weights"], np.float32), np.array(numbers["bias"], np.float32)
    except (OSError, ValueError, KeyError) as error:
        raise InvalidArgument(f"model '{source.name}': cannot read '{source.model_file}': {error!r}") from error


class LinearBackend(ArrayBackend):
    model_filename = "weights.json"

    def load_model(self) -> None:
        self.weights, self.bias = read_model(self.spec.source)

    def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {"Y": inputs["X"] @ self.weights + self.bias}

    @classmethod
    def signature(cls, source: ModelSource) -> Signature:
        weights, _ = read_model(source)
        rows, columns = weights.shape
        return [TensorSignature("X", DataType.FP32, (-1, rows))], [TensorSignature("Y", DataType.FP32, (-1, columns))]
