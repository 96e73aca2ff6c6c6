"""Metadata, configurations and statistics of the server and its models, as clients see them.

Consulted by the core.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from weakref import WeakKeyDictionary

from actors.model.servable import Servable
from protocol.core import ModelMetadata, ModelStatistics, ServerMetadata, TensorMetadata
from repository.model_config import ModelConfig, ModelInput, ModelOutput

# The protocol extensions that are built, by Triton's names.
EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


def server_metadata(server_id: str) -> ServerMetadata:
    return ServerMetadata(server_id, metadata.version("trioton"), EXTENSIONS)


def model_metadata(name: str, model: Servable, versions: Sequence[int]) -> ModelMetadata:
    """By the name that it was asked for by; `versions` are those that serve."""
    config = model.config
    tensors = _tensors.get(model)
    if tensors is None or tensors.config is not config:
        tensors = _tensors[model] = _Tensors(config)
    return ModelMetadata(
        name=name,
        versions=tuple(map(str, versions)),
        platform=config.platform or config.backend,
        inputs=tensors.inputs,
        outputs=tensors.outputs,
    )


def model_statistics(model: Servable) -> ModelStatistics:
    return model.statistics.frozen(model.config.name, model.version, model.memory_usage())


class _Tensors:
    """The metadata of a model's tensors."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.inputs = tuple(_tensor_metadata(config, tensor) for tensor in config.input)
        self.outputs = tuple(_tensor_metadata(config, tensor) for tensor in config.output)


# Every call of a chat asks for them. They are made anew when the model has another configuration.
_tensors: WeakKeyDictionary[Servable, _Tensors] = WeakKeyDictionary()


def _tensor_metadata(config: ModelConfig, tensor: ModelInput | ModelOutput) -> TensorMetadata:
    shape = (-1, *tensor.dims) if config.is_batching and not tensor.is_shape_tensor else tensor.dims
    return TensorMetadata(tensor.name, tensor.data_type.name, shape)
