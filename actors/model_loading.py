"""From a model directory to `Model` objects that are ready to be run: the blocking and fallible part of a load.

Reads and completes the configuration, refuses what is not built, picks the versions and places the instances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import trio

from actors.model import Model
from backends.interface import Backend, InstanceSpec, ModelSource
from backends.registry import BackendRegistry
from protocol.core import LoadParameters
from protocol.errors import InvalidArgument, Unsupported
from repository.labels import read_labels
from repository.layout import ModelDirectory, select_versions, version_directories
from repository.loader import read_config
from repository.model_config import ModelConfig
from repository.unsupported import refuse_unbuilt
from repository.validation import normalise, resolve_instances, validate


@dataclass(frozen=True, slots=True)
class ModelLoader:
    """How this server turns directories into models."""

    registry: BackendRegistry
    gpu_count: int = 0
    auto_complete_config: bool = True
    has_histograms: bool = True
    backend_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    async def prepare(self, directory: ModelDirectory, parameters: LoadParameters) -> tuple[Model, ...]:
        """One `Model`, not yet running, for each version that the policy selects.

        Raises ServerError with what is wrong and where. Cancelled, it leaves nothing behind.
        """
        in_thread = trio.to_thread.run_sync
        config = await in_thread(
            partial(read_config, directory, override=parameters.config, auto_complete=self.auto_complete_config)
        )
        refuse_unbuilt(config)
        if not config.backend:
            raise InvalidArgument(f"unexpected platform type '{config.platform}' for {config.name}")
        backend = await in_thread(partial(self.registry.find, config.backend, model=directory.name))
        available = await in_thread(version_directories, directory)
        versions = select_versions(config.version_policy, available, model=directory.name)
        config = self._normalise(config, backend)
        if self.auto_complete_config:
            validate(config, complete=False)
            config = await backend.complete_config(self._source(directory, config, versions[-1]))
            refuse_unbuilt(config)
            config = self._normalise(config, backend)
        validate(config)
        _refuse_decoupled(config, backend)
        labels = await in_thread(read_labels, directory, config)
        return tuple(self._model(directory, config, version, backend, labels) for version in versions)

    def _normalise(self, config: ModelConfig, backend: type[Backend]) -> ModelConfig:
        return normalise(
            config,
            gpu_count=self.gpu_count,
            backend_default_cpu_count=backend.default_cpu_instance_count,
            backend_prefers_gpu=backend.prefers_gpu,
        )

    def _source(self, directory: ModelDirectory, config: ModelConfig, version: int) -> ModelSource:
        return ModelSource(
            directory.name,
            version,
            directory.path,
            config,
            {**self.backend_config.get("", {}), **self.backend_config.get(config.backend, {})},
        )

    def _model(
        self,
        directory: ModelDirectory,
        config: ModelConfig,
        version: int,
        backend: type[Backend],
        labels: Mapping[str, Sequence[str]],
    ) -> Model:
        source = self._source(directory, config, version)
        specs = [
            InstanceSpec(source, placement.name, placement.kind, placement.device_id)
            for placement in resolve_instances(config)
        ]
        return Model(config, version, backend, specs, labels, has_histograms=self.has_histograms)


def _refuse_decoupled(config: ModelConfig, backend: type[Backend]) -> None:
    if not config.is_decoupled:
        return
    if not backend.can_be_decoupled:
        raise Unsupported(
            f"model '{config.name}' has 'model_transaction_policy.decoupled', which backend '{config.backend}' does "
            "not support"
        )
    if config.dynamic_batching is not None and config.dynamic_batching.preserve_ordering:
        raise Unsupported(
            f"model '{config.name}' is decoupled and has 'dynamic_batching.preserve_ordering', which cannot be used "
            "together yet"
        )


def with_reason(error: Exception) -> str:
    """How a load error reads in the repository index: Triton's word for its kind, then its text."""
    label = getattr(error, "label", "Internal")
    return f"{label}: {error}"
