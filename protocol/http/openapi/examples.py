"""Examples of requests and responses for each loaded model.

A request can be sent as it is: every element is 1, and variable dimensions have the sizes of the model's warm-up sample
or the smallest useful ones. A response shows the form alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from protocol.core import TensorMetadata
from protocol.datatypes import DataType
from protocol.http.openapi.models import JsonObject, ModelDescription, datatype_of

Tensors: TypeAlias = Sequence[TensorMetadata]

# A model with more elements in its tensors has no example: nobody reads it, and the page would only get slow.
MAX_EXAMPLE_ELEMENTS = 8192

# Networks for images halve the sides several times; this size fits the usual ones.
_IMAGE_SIDE = 32
_IMAGE_CHANNELS = (1, 3, 4)

_ELEMENT_EXAMPLES: Mapping[DataType, Any] = {DataType.BOOL: True, DataType.BYTES: "text"}


def example_shape(model: ModelDescription, tensor: TensorMetadata) -> tuple[int, ...]:
    """The shape of the model's own sample, or 1 for each variable dimension; but the sides of an image are larger."""
    shape, sample = tensor.shape, model.sample_shapes.get(tensor.name, ())
    if len(sample) == len(shape):
        return tuple(known if size < 0 else size for size, known in zip(shape, sample, strict=True))
    is_image = len(shape) == 4 and shape[1] in _IMAGE_CHANNELS
    return tuple(
        size if size >= 0 else _IMAGE_SIDE if is_image and index >= 2 else 1 for index, size in enumerate(shape)
    )


def infer_request(model: ModelDescription) -> JsonObject | None:
    tensors = model.required_inputs
    return {"inputs": _tensors(model, tensors)} if _is_small(model, tensors) else None


def infer_response(model: ModelDescription) -> JsonObject | None:
    tensors = model.metadata.outputs
    return {**_head(model), "outputs": _tensors(model, tensors)} if _is_small(model, tensors) else None


def generate_request(model: ModelDescription) -> JsonObject | None:
    tensors = model.required_inputs
    return _values(model, tensors) if _is_small(model, tensors) else None


def generate_response(model: ModelDescription) -> JsonObject | None:
    tensors = model.metadata.outputs
    return {**_values(model, tensors), **_head(model)} if _is_small(model, tensors) else None


def _is_small(model: ModelDescription, tensors: Tensors) -> bool:
    return sum(math.prod(example_shape(model, tensor)) for tensor in tensors) <= MAX_EXAMPLE_ELEMENTS


def _head(model: ModelDescription) -> JsonObject:
    return {"model_name": model.name, "model_version": model.metadata.versions[-1]}


def _tensors(model: ModelDescription, tensors: Tensors) -> list[JsonObject]:
    return [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(example_shape(model, tensor)),
            "data": _elements(model, tensor),
        }
        for tensor in tensors
    ]


def _values(model: ModelDescription, tensors: Tensors) -> JsonObject:
    """As `generate` has them: one element is a bare value."""
    named = {tensor.name: _elements(model, tensor) for tensor in tensors}
    return {name: elements[0] if len(elements) == 1 else elements for name, elements in named.items()}


def _elements(model: ModelDescription, tensor: TensorMetadata) -> list[Any]:
    count = math.prod(example_shape(model, tensor))
    return [_ELEMENT_EXAMPLES.get(datatype_of(tensor), 1)] * count
