"""Metadata, configurations and statistics of the server and its models, as clients see them.

Consulted by the core.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

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
    return ModelMetadata(
        name=name,
        versions=tuple(map(str, versions)),
        platform=config.platform or config.backend,
        inputs=tuple(_tensor_metadata(config, tensor) for tensor in config.input),
        outputs=tuple(_tensor_metadata(config, tensor) for tensor in config.output),
    )


def model_statistics(model: Servable) -> ModelStatistics:
    return model.statistics.frozen(model.config.name, model.version, model.memory_usage())


def _tensor_metadata(config: ModelConfig, tensor: ModelInput | ModelOutput) -> TensorMetadata:
    shape = (-1, *tensor.dims) if config.is_batching and not tensor.is_shape_tensor else tensor.dims
    return TensorMetadata(tensor.name, tensor.data_type.name, shape)
