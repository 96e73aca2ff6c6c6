"""Model loader: from a model directory to `Servable` objects that are ready to run; the blocking and fallible part of a
load.

Reads and completes the configuration, refuses what is not supported, selects versions and places instances on devices.
Cancelled, it leaves nothing behind.
"""

from __future__ import annotations

import importlib.util
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import trio

from actors.cache.entry import KEY_BYTES, version_key
from actors.cache.response_cache import ResponseCache, VersionCache
from actors.ensemble.composition import Composed, Composing, Composition, compose, find_composing
from actors.ensemble.ensemble import Ensemble
from actors.instance.rate_limiter import ModelLimits, RateLimiter
from actors.lifecycle.agents import ModelAgents
from actors.lifecycle.dependencies import Needs, needs_of_config, with_step_identifiers
from actors.lifecycle.download import at_hand
from actors.lifecycle.gpu_limits import check_gpu_limits
from actors.lifecycle.memory_usage import stated_bytes
from actors.metrics.latencies import HistogramDetail
from actors.model.model import Model
from actors.model.servable import Servable
from actors.model.traffic_split import FindServable, TrafficSplit
from actors.scheduling.batching.adaptive import read_adaptive_settings
from actors.scheduling.batching.held import NO_HOLD, SchedulerHold
from backends.devices.devices import Devices
from backends.interface import Backend, InstanceSpec, ModelSource
from backends.registry import BackendRegistry
from backends.server_resources import ServerResources
from backends.services import BackendServices
from protocol.core import LoadParameters
from protocol.errors import ServerError, Unsupported
from protocol.messages import Tensor
from protocol.text.model import TextModel
from repository.agents.registry import AgentRegistry
from repository.backend_fields import PYTHON_RUNTIME
from repository.changes import LoadedFrom
from repository.fingerprint import fingerprint
from repository.initial_state import read_initial_states
from repository.instance_groups import (
    MINIMUM_COMPUTE_CAPABILITY,
    NO_GPUS,
    UsableGpus,
    default_host_policy,
    gpu_groups,
    on_the_cpu,
)
from repository.labels import read_labels
from repository.layout import ModelDirectory, select_versions, version_directories
from repository.loader import read_config
from repository.model_config import ModelConfig
from repository.model_folders import GPU_ENGINE, EngineChoice
from repository.shape_rules import read_shape_rules
from repository.text_models import NO_TEXT_DEFAULTS, TextDefaults, read_text_model, text_tensors
from repository.traffic_split import is_split
from repository.unsupported import refuse_unbuilt
from repository.validation import InstancePlacement, normalise, resolve_instances, validate, validate_backend
from repository.warmup_data import WarmupSample, warmup_samples

Result = TypeVar("Result")

logger = logging.getLogger("trioton.model_loading")

# Threads that read configurations and files of models: they compute in Python, and with each of them the loop waits
# longer for the interpreter's lock.
_MOST_READERS = 4


@dataclass(frozen=True, slots=True)
class ModelLoader:
    """Turns directories into models, with the settings of one server."""

    registry: BackendRegistry
    compute_capabilities: Sequence[str] = ()  # of each GPU
    auto_complete_config: bool = True
    # Which of a model's `configs/` to take, see `repository.loader`.
    config_name: str = ""
    histograms: HistogramDetail = HistogramDetail.FEW
    summary_quantiles: Sequence[float] = ()
    backend_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    cache: ResponseCache | None = None
    rate_limiter: RateLimiter | None = None
    services: BackendServices | None = None
    agent_registry: AgentRegistry = field(default_factory=AgentRegistry)
    # The cores of each host policy that there is, and the fraction of a GPU's memory above which nothing is loaded.
    host_policies: Mapping[str, frozenset[int]] = field(default_factory=dict)
    gpu_limits: Mapping[int, float] = field(default_factory=dict)
    devices: Devices = field(default_factory=Devices)
    min_compute_capability: float = MINIMUM_COMPUTE_CAPABILITY
    # What is to be on a GPU runs on the CPU where there is none.
    gpu_fallback: bool = False
    restart_wait_seconds: float = 0.0
    scheduler_hold: SchedulerHold = NO_HOLD
    resources: ServerResources | None = None
    text_defaults: TextDefaults = NO_TEXT_DEFAULTS
    # The engine that was asked for, for language models whose configuration names none.
    engine: str = ""
    _readers: trio.CapacityLimiter = field(default_factory=partial(trio.CapacityLimiter, _MOST_READERS), init=False)

    @property
    def engines(self) -> EngineChoice:
        has_gpu_engine = bool(self.gpus.ids) and importlib.util.find_spec(GPU_ENGINE) is not None
        return EngineChoice(self.engine, GPU_ENGINE if has_gpu_engine else "")

    @property
    def gpus(self) -> UsableGpus:
        return UsableGpus.among(self.compute_capabilities, self.min_compute_capability)

    def agents(self, directory: ModelDirectory, config: ModelConfig) -> ModelAgents:
        """The repository agents that the configuration names."""
        return ModelAgents(directory, config, self.agent_registry)

    async def composing_models(self, directory: ModelDirectory, parameters: LoadParameters) -> Needs:
        """What must be loaded before this model: the models of an ensemble's steps or of a traffic split. A
        configuration that cannot be read has none; `read` says what is wrong with it."""
        try:
            async with at_hand(directory, only_configuration=True) as (here, _):
                return needs_of_config(await self._in_thread(self._read, here, parameters))
        except ServerError:
            return Needs()

    async def read(self, directory: ModelDirectory, here: ModelDirectory, parameters: LoadParameters) -> LoadedFrom:
        """The configuration and where the model is loaded from. Files that change after it has begun count as changed.
        `here` is where its files can be read.

        Raises ServerError with what is wrong and where.
        """
        files = await self._in_thread(fingerprint, directory)
        return LoadedFrom(await self.read_config(here, parameters), files, directory.path)

    async def read_config(self, directory: ModelDirectory, parameters: LoadParameters) -> ModelConfig:
        """Raises ServerError with what is wrong and where."""
        return await self._in_thread(self._read, directory, parameters)

    async def prepare(self, directory: ModelDirectory, config: ModelConfig, find: FindServable) -> tuple[Servable, ...]:
        """One servable, not yet running, for each version that the policy of a configuration, as it was read, selects.
        An ensemble finds the models of its steps by `find`, and they must serve.

        Raises ServerError with what is wrong and where. Cancelled, it leaves nothing behind.
        """
        in_thread = self._in_thread
        refuse_unbuilt(config)
        if config.is_ensemble:
            return await self._prepare_ensemble(directory, config, find)
        if is_split(config):
            return (TrafficSplit(config, find),)
        validate_backend(config)
        backend = await trio.to_thread.run_sync(self.find_backend, directory, config)  # which may import for long
        available = await in_thread(version_directories, directory)
        versions = select_versions(config.version_policy, available, model=directory.name)
        config = self._normalise(config, backend)
        if self.auto_complete_config:
            validate(config, complete=False)
            config = await backend.complete_config(self.source(directory, config, versions[-1], backend))
            refuse_unbuilt(config)
            config = self._normalise(config, backend)
        validate(config)
        _refuse_decoupled(config, backend)
        _refuse_joining(config, backend)
        await in_thread(check_gpu_limits, config, self.gpu_limits)
        read_adaptive_settings(config)
        stated_bytes(config)
        labels = await in_thread(read_labels, directory, config)
        warmup = await in_thread(warmup_samples, config, directory.path)
        states = await in_thread(read_initial_states, directory.path, config)
        texts = await _text_models(directory, config, versions, self.text_defaults)
        generation: bytes | None = None
        if self.cache is not None and config.response_cache is not None and config.response_cache.enable:
            generation = await in_thread(self.cache.generation, directory, config)
        return tuple(
            self._model(directory, config, version, backend, labels, warmup, states, generation, texts.get(version))
            for version in versions
        )

    async def _in_thread(self, call: Callable[..., Result], *arguments: object) -> Result:
        """What a call returns that reads, one of a few at a time."""
        return await trio.to_thread.run_sync(call, *arguments, limiter=self._readers)

    def find_backend(self, directory: ModelDirectory, config: ModelConfig) -> type[Backend]:
        """The class that serves the model. Blocks; raises ServerError where there is none."""
        return self.registry.find(
            config.backend,
            model=directory.name,
            directory=directory.path,
            is_python_based=config.runtime == PYTHON_RUNTIME,
        )

    async def _prepare_ensemble(
        self, directory: ModelDirectory, config: ModelConfig, find: FindServable
    ) -> tuple[Servable, ...]:
        config = normalise(config, gpus=NO_GPUS, backend_default_cpu_count=1, backend_prefers_gpu=False)
        await self._in_thread(validate, config)
        available = await trio.to_thread.run_sync(version_directories, directory)
        versions = select_versions(config.version_policy, available, model=directory.name)
        labels = await trio.to_thread.run_sync(read_labels, directory, config)
        texts = await _text_models(directory, config, versions, self.text_defaults)
        composing, composed = await self._compose(config, find)
        return tuple(
            self._ensemble(
                Composition(config, find, labels, composing=composing, composed=composed), version, texts.get(version)
            )
            for version in versions
        )

    async def _compose(self, config: ModelConfig, find: FindServable) -> tuple[Composing, Composed]:
        """Of the models as they are when it ends."""
        composing = find_composing(config, find)
        while True:
            composed = await self._in_thread(compose, config, composing)
            before, composing = composing, find_composing(config, find)
            if composing == before:
                return composing, composed

    def _ensemble(self, composition: Composition, version: int, text: TextModel | None) -> Ensemble:
        config = composition.config
        cache: VersionCache | None = None
        if self.cache is not None and config.response_cache is not None and config.response_cache.enable:
            # Its answers depend on all its composing models, so they hold for this load alone, also in a shared cache.
            key = version_key(config.name, version, secrets.token_bytes(KEY_BYTES))
            cache = VersionCache(self.cache, key, version)
        return Ensemble(
            composition,
            version,
            histograms=self.histograms,
            summary_quantiles=self.summary_quantiles,
            cache=cache,
            failures=None if self.services is None else self.services.failures,
            text=text,
        )

    def _read(self, directory: ModelDirectory, parameters: LoadParameters) -> ModelConfig:
        config = read_config(
            directory,
            override=parameters.config,
            auto_complete=self.auto_complete_config,
            config_name=self.config_name,
            engines=self.engines,
        )
        return with_step_identifiers(config)

    def _normalise(self, config: ModelConfig, backend: type[Backend]) -> ModelConfig:
        if self.gpu_fallback and not self.gpus.ids and (groups := gpu_groups(config)):
            logger.warning(
                "model '%s' runs on the CPU: no GPU is available for its instance group %s (--gpu-fallback)",
                config.name,
                ", ".join(groups),
            )
            config = on_the_cpu(config)
        return normalise(
            config,
            gpus=self.gpus,
            backend_default_cpu_count=backend.default_cpu_instance_count,
            backend_prefers_gpu=backend.prefers_gpu,
        )

    def source(
        self, directory: ModelDirectory, config: ModelConfig, version: int, backend: type[Backend]
    ) -> ModelSource:
        """One version as its backend gets it."""
        settings: dict[str, str] = {}
        for name in ("", *backend.settings_from, config.backend):
            settings.update(self.backend_config.get(name, {}))
        return ModelSource(
            directory.name,
            version,
            directory.path,
            config,
            settings,
            self.services,
            is_flat=directory.is_flat,
            devices=self.devices,
            resources=self.resources,
        )

    def _on_device(self, source: ModelSource, placement: InstancePlacement) -> ModelSource:
        is_known = placement.device_id < len(self.compute_capabilities)
        return source.for_device(placement.kind, self.compute_capabilities[placement.device_id] if is_known else "")

    def _cores(self, config: ModelConfig, placement: InstancePlacement) -> frozenset[int]:
        policy = placement.host_policy
        if policy not in self.host_policies and policy != default_host_policy(placement.kind, placement.device_id):
            logger.warning("model '%s' wants host policy '%s', which no --host-policy sets", config.name, policy)
        return self.host_policies.get(policy, frozenset())

    def _model(
        self,
        directory: ModelDirectory,
        config: ModelConfig,
        version: int,
        backend: type[Backend],
        labels: Mapping[str, Sequence[str]],
        warmup: Sequence[WarmupSample],
        initial_states: Mapping[str, Tensor],
        cache_generation: bytes | None,
        text: TextModel | None,
    ) -> Model:
        source = self.source(directory, config, version, backend)
        placements = resolve_instances(config)
        specs = [
            InstanceSpec(
                self._on_device(source, each),
                each.name,
                each.kind,
                each.device_id,
                each.is_passive,
                self._cores(config, each),
                each.profiles,
                each.secondary_devices,
            )
            for each in placements
        ]
        cache: VersionCache | None = None
        if self.cache is not None and cache_generation is not None:
            cache = VersionCache(self.cache, version_key(config.name, version, cache_generation), version)
        needs = {each.name: each.rate_limiter for each in placements if each.rate_limiter is not None}
        return Model(
            config,
            version,
            backend,
            specs,
            labels,
            histograms=self.histograms,
            summary_quantiles=self.summary_quantiles,
            warmup=warmup,
            initial_states=initial_states,
            cache=cache,
            failures=None if self.services is None else self.services.failures,
            limits=ModelLimits(self.rate_limiter, needs) if self.rate_limiter is not None and needs else None,
            restart_wait=self.restart_wait_seconds,
            hold=self.scheduler_hold,
            text=text,
        )


async def _text_models(
    directory: ModelDirectory, config: ModelConfig, versions: Sequence[int], defaults: TextDefaults
) -> Mapping[int, TextModel]:
    """By version; none for a model without text, which pays nothing."""
    if text_tensors(config) is None:
        return {}
    read = {
        version: await trio.to_thread.run_sync(read_text_model, directory, config, version, defaults)
        for version in versions
    }
    return {version: text for version, text in read.items() if text is not None}


def _refuse_decoupled(config: ModelConfig, backend: type[Backend]) -> None:
    if config.is_decoupled and not backend.can_be_decoupled:
        raise Unsupported(
            f"model '{config.name}' has 'model_transaction_policy.decoupled', which backend '{config.backend}' does "
            "not support"
        )


def _refuse_joining(config: ModelConfig, backend: type[Backend]) -> None:
    """Where requests go to the model as they are, nothing is made for the batch as a whole."""
    if backend.joins_requests:
        return
    rules = read_shape_rules(config)
    fields = {
        "batch_input": bool(config.batch_input),
        "batch_output": bool(config.batch_output),
        "parameters['shape_rules'].batch": rules is not None and rules.batch is not None,
    }
    for name, is_used in fields.items():
        if is_used:
            raise Unsupported(
                f"model '{config.name}' has '{name}', but backend '{config.backend}' gets the requests of a batch as "
                "they are"
            )


def with_reason(error: Exception) -> str:
    """The text of a load error in the repository index: Triton's word for its kind, then its message."""
    label = getattr(error, "label", "Internal")
    return f"{label}: {error}"
