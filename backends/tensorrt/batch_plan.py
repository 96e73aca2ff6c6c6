"""Batch plan: the inputs as the engine gets them, the optimisation profile, and the CUDA graph of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from backends.devices.batch import reshaped
from backends.tensorrt.description import EngineDescription
from backends.tensorrt.graphs import GraphPlan, choose_graph
from backends.tensorrt.profiles import Extents, choose_profile
from protocol.tensors.device_tensor import DeviceTensor
from repository.model_config import Dims, ModelConfig

# What a batch is made of: device tensors, and as arrays of the host the values of shape tensors.
Values: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """`tensors` are on the device, in the shapes of the batch; a graph may be larger. `host_values` are those of shape
    tensors."""

    profile: int
    tensors: Mapping[str, DeviceTensor]
    host_values: Mapping[str, NDArray[Any]]
    graph: GraphPlan | None

    @property
    def shapes(self) -> dict[str, Dims]:
        return {name: tensor.shape for name, tensor in self.tensors.items()}


def plan_batch(
    config: ModelConfig,
    description: EngineDescription,
    profiles: Sequence[int],
    graphs: Sequence[GraphPlan],
    inputs: Values,
    *,
    instance: str,
) -> BatchPlan:
    """For one batch of inputs that have the shapes of the configuration.

    Raises:
        InvalidArgument: no profile allows these shapes, or these values of shape tensors.
    """
    shape_tensors = {tensor.name: tensor for tensor in description.inputs if tensor.is_shape_tensor}
    scalars = {tensor.name for tensor in description.inputs if not tensor.shape}
    tensors: dict[str, DeviceTensor] = {
        name: reshaped(value, ()) if name in scalars else value
        for name, value in inputs.items()
        if name not in shape_tensors
    }
    rows = next((tensor.shape[0] for tensor in tensors.values()), 0) if config.is_batching else 0
    host_values: dict[str, NDArray[Any]] = {}
    for name in inputs.keys() & shape_tensors.keys():
        tensor = shape_tensors[name]
        values = np.asarray(inputs[name]).reshape(-1).tolist()
        # A shape tensor has the batch as its first value.
        whole = [rows, *values] if rows else values
        host_values[name] = np.array(whole, dtype=tensor.data_type.dtype).reshape(tensor.shape)
    extents: Extents = {name: tensor.shape for name, tensor in tensors.items()} | {
        name: tuple(array.reshape(-1).tolist()) for name, array in host_values.items()
    }
    profile = choose_profile(description, profiles, extents, model=config.name, instance=instance)
    return BatchPlan(profile, tensors, host_values, choose_graph(graphs, profile, extents))
