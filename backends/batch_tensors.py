"""Batch inputs and batch outputs: tensors that the server generates for ragged batches.

`batch_input` tells the model where each request's part of a flat, ragged input lies; `batch_output` says by which
input's shapes a flat output is cut up again. Source: Triton's ragged batching, `BatchInput` and `BatchOutput`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.errors import Internal, Unsupported
from protocol.messages import InferenceRequest, Tensor
from repository.model_config import BatchInputKind, ModelConfig, ModelOutput

# One shape for each request: that of the source input, the batch dimension included.
Shapes: TypeAlias = Sequence[tuple[int, ...]]


def _element_count(shapes: Shapes, leading: int) -> list[int]:
    return [math.prod(shape) for shape in shapes]


def _accumulated(shapes: Shapes, leading: int) -> list[int]:
    return list(accumulate(map(math.prod, shapes)))


def _accumulated_with_zero(shapes: Shapes, leading: int) -> list[int]:
    return list(accumulate(map(math.prod, shapes), initial=0))


def _max_as_shape(shapes: Shapes, leading: int) -> list[int]:
    return [0] * max(map(math.prod, shapes), default=0)


def _item_shape(shapes: Shapes, leading: int) -> list[tuple[int, ...]]:
    return [shape[leading:] for shape in shapes for _ in range(math.prod(shape[:leading]))]


def _item_shape_flatten(shapes: Shapes, leading: int) -> list[int]:
    return [size for item in _item_shape(shapes, leading) for size in item]


_MAKERS: Mapping[BatchInputKind, Callable[[Shapes, int], list[Any]]] = {
    # The elements of each request: [requests].
    BatchInputKind.ELEMENT_COUNT: _element_count,
    # Where each request's elements end: [requests].
    BatchInputKind.ACCUMULATED_ELEMENT_COUNT: _accumulated,
    # Where they begin, and where the last ones end: [requests + 1].
    BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: _accumulated_with_zero,
    # As long as the largest request; only the shape has a meaning.
    BatchInputKind.MAX_ELEMENT_COUNT_AS_SHAPE: _max_as_shape,
    # The shape of each row: [rows, rank].
    BatchInputKind.ITEM_SHAPE: _item_shape,
    # The same in one dimension.
    BatchInputKind.ITEM_SHAPE_FLATTEN: _item_shape_flatten,
}


class BatchInputs:
    """The `batch_input` entries of one model."""

    def __init__(self, config: ModelConfig) -> None:
        self._entries = config.batch_input
        self._leading = 1 if config.is_batching else 0
        self._ranks = {entry.name: len(entry.dims) for entry in config.input}

    def arrays(self, requests: Sequence[InferenceRequest]) -> dict[str, NDArray[Any]]:
        """The arrays for a batch of these requests."""
        made: dict[str, NDArray[Any]] = {}
        for entry in self._entries:
            source = entry.source_input[0]
            shapes = [tensor.shape for request in requests for tensor in request.inputs if tensor.name == source]
            array = np.array(_MAKERS[entry.kind](shapes, self._leading), dtype=entry.data_type.dtype)
            if entry.kind is BatchInputKind.ITEM_SHAPE:
                array = array.reshape(-1, self._ranks[source])
            for target in entry.target_name:
                made[target] = array
        return made


class BatchOutputs:
    """The `batch_output` entries of one model: `names` are the outputs that they are about."""

    def __init__(self, config: ModelConfig) -> None:
        self._model = config.name
        self._leading = (-1,) if config.is_batching else ()
        self._sources = {target: entry.source_input[0] for entry in config.batch_output for target in entry.target_name}
        self.names = frozenset(self._sources)

    def scatter(self, entry: ModelOutput, array: NDArray[Any], requests: Sequence[InferenceRequest]) -> list[Tensor]:
        """Cut a flat output up: each request gets as many elements as its shape needs, which is the output's `dims`
        with the source input's size in place of each -1.

        Raises:
            Internal: the source input is not there, or has fewer dimensions than the output.
            Unsupported: the output has too few elements.
        """
        flat = array.reshape(-1)
        parts: list[Tensor] = []
        start = 0
        for request in requests:
            shape = self._shape(entry, request)
            end = start + math.prod(shape)
            if end > flat.size:
                raise Unsupported(
                    f"failed to split the output tensor '{entry.name}' in responses: expected at least {end} elements "
                    f"in model output, got {flat.size}"
                )
            parts.append(Tensor.from_numpy(entry.name, flat[start:end].reshape(shape)))
            start = end
        return parts

    def _shape(self, entry: ModelOutput, request: InferenceRequest) -> tuple[int, ...]:
        source = self._sources[entry.name]
        given = next((tensor.shape for tensor in request.inputs if tensor.name == source), ())
        dims = (*self._leading, *entry.dims)
        if any(dim == -1 and place >= len(given) for place, dim in enumerate(dims)):
            raise Internal(
                f"model '{self._model}', output '{entry.name}': expected input '{source}' to give the sizes of shape "
                f"{list(dims)}, but its shape is {list(given)}"
            )
        return tuple(given[place] if dim == -1 else dim for place, dim in enumerate(dims))
