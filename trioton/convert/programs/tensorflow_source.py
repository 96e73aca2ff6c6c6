"""SavedModels of TensorFlow, by their signature `serving_default`, in their own precision alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow

from protocol.datatypes import from_numpy_dtype
from trioton.convert.sources import Source
from trioton.convert.tensors import Arrays, TensorSpec

SIGNATURE = "serving_default"


def load(source: Source) -> TensorFlowSource:
    return TensorFlowSource(source.path)


class TensorFlowSource:
    parameters: Mapping[str, str] = {}

    def __init__(self, path: str) -> None:
        self._model = tensorflow.saved_model.load(path)  # the function below does not keep its variables
        if SIGNATURE not in self._model.signatures:
            found = ", ".join(self._model.signatures) or "none"
            raise ValueError(f"the SavedModel has no signature '{SIGNATURE}'; it has {found}")
        self._function = self._model.signatures[SIGNATURE]

    def inputs(self) -> Sequence[TensorSpec]:
        _, named = self._function.structured_input_signature
        return [_spec(name, each) for name, each in named.items()]

    def answer(self, inputs: Arrays, *, is_wide: bool) -> Arrays:
        if is_wide:
            raise NotImplementedError("TensorFlow computes a SavedModel in its own types alone")
        given = {
            name: tensorflow.constant(array.tolist() if array.dtype.kind == "U" else array)
            for name, array in inputs.items()
        }
        return {name: np.asarray(tensor.numpy()) for name, tensor in self._function(**given).items()}


def _spec(name: str, spec: Any) -> TensorSpec:
    if spec.shape.rank is None:
        raise ValueError(f"input '{name}' is no tensor of a known rank")
    is_text = spec.dtype == tensorflow.string
    datatype = None if is_text else from_numpy_dtype(np.dtype(spec.dtype.as_numpy_dtype))
    if not is_text and datatype is None:
        raise ValueError(f"input '{name}' is of {spec.dtype.name}, which is no datatype of the protocol")
    dims = tuple(
        ("batch" if axis == 0 else f"{name}_{axis}") if dim is None else dim
        for axis, dim in enumerate(spec.shape.as_list())
    )
    return TensorSpec(name, "BYTES" if datatype is None else datatype.name, dims)
