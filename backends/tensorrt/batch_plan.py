"""What a batch runs with: its inputs as the engine gets them, the profile, and the graph if there is one for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.tensorrt.description import EngineDescription
from backends.tensorrt.graphs import GraphPlan, choose_graph
from backends.tensorrt.profiles import Extents, choose_profile
from repository.model_config import Dims, ModelConfig

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """`inputs` are C-contiguous, in the shapes to run with; those of shape tensors hold the values. `shapes` are those
    of the batch itself, which a graph may be larger than."""

    profile: int
    inputs: Arrays
    shapes: Mapping[str, Dims]
    graph: GraphPlan | None


def plan_batch(
    config: ModelConfig,
    description: EngineDescription,
    profiles: Sequence[int],
    graphs: Sequence[GraphPlan],
    inputs: Arrays,
    *,
    instance: str,
) -> BatchPlan:
    """For one batch of arrays that have the shapes of the configuration.

    Raises:
        InvalidArgument: no profile allows these shapes, or these values of shape tensors.
    """
    inputs = _as_engine_takes(config, description, inputs)
    extents = _extents(description, inputs)
    profile = choose_profile(description, profiles, extents, model=config.name, instance=instance)
    graph = choose_graph(graphs, profile, extents)
    shapes = {name: array.shape for name, array in inputs.items()}
    if graph is not None:
        inputs = {name: _enlarged(array, graph.shapes[name]) for name, array in inputs.items()}
    return BatchPlan(profile, inputs, shapes, graph)


def cut_to(array: NDArray[Any], shape: Dims) -> NDArray[Any]:
    """What a larger graph computed, without what is beyond this shape."""
    return array if array.shape == shape else array[tuple(slice(size) for size in shape)]


def _as_engine_takes(config: ModelConfig, description: EngineDescription, inputs: Arrays) -> Arrays:
    """Filled up to the number of rows that the engine was built for; shape tensors with the batch as first value."""
    scalars = {tensor.name for tensor in description.inputs if not tensor.shape}
    shape_tensors = {tensor.name: tensor for tensor in description.inputs if tensor.is_shape_tensor}
    plain = {name: array for name, array in inputs.items() if name not in shape_tensors}
    rows = next((len(array) for array in plain.values()), 0) if config.is_batching else 0
    if rows and rows < description.fixed_rows:
        missing = description.fixed_rows - rows
        plain = {name: np.concatenate([array, *[array[-1:]] * missing]) for name, array in plain.items()}
    made = {
        name: np.asarray(array.reshape(()) if name in scalars else array, order="C") for name, array in plain.items()
    }
    for name in inputs.keys() & shape_tensors.keys():
        tensor = shape_tensors[name]
        values = np.asarray(inputs[name]).reshape(-1).tolist()
        made[name] = np.array([rows, *values] if rows else values, dtype=tensor.data_type.dtype).reshape(tensor.shape)
    return made


def _extents(description: EngineDescription, inputs: Arrays) -> Extents:
    """The shape of each input, and of a shape tensor its values."""
    shape_tensors = {tensor.name for tensor in description.inputs if tensor.is_shape_tensor}
    return {
        name: tuple(array.reshape(-1).tolist()) if name in shape_tensors else array.shape
        for name, array in inputs.items()
    }


def _enlarged(array: NDArray[Any], shape: Dims) -> NDArray[Any]:
    if array.shape == shape:
        return array
    made = np.zeros(shape, array.dtype)
    made[tuple(slice(size) for size in array.shape)] = array
    return made
