"""The space of a model: its settings, why others are left out, and the configuration of each candidate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from actors.scheduling.batching.adaptive import PARAMETER as ADAPTIVE
from repository.model_config import InstanceKind, ModelConfig
from repository.shape_rules import PARAMETER as SHAPE_RULES
from trioton.analyze.search.queueing import Setup, greatest_rate
from trioton.analyze.search.service_times import ServiceTimes
from trioton.analyze.space import backends, scheduling
from trioton.analyze.space.axes import AxesSpace, Settings
from trioton.analyze.space.facts import Facts, Setting

# Backends that decide themselves what runs together.
_ENGINES = frozenset({"openvino_genai", "scripted", "vllm"})


@dataclass(frozen=True, slots=True)
class ModelSpace:
    """What may be changed about a model.

    Attributes:
        left_out: by setting, why it is not tried.
    """

    config: ModelConfig
    facts: Facts
    settings: tuple[Setting, ...]
    left_out: Mapping[str, str]

    def apply(self, settings: Settings, config: ModelConfig) -> ModelConfig:
        """The configuration, the completed one or that of a file, with settings changed."""
        for setting in self.settings:
            if setting.axis.name in settings:
                config = setting.apply(config, settings[setting.axis.name])
        return config

    def axes_space(self, times: Mapping[str, ServiceTimes], percent: float = 99.0) -> AxesSpace:
        """Its candidates; `times` by the option of threads, that of the default as an empty text."""

        def predict(settings: Settings) -> float | None:
            setup = self.setup(settings, times)
            return None if setup is None else greatest_rate(setup, self.facts.bound, percent)

        return AxesSpace([setting.axis for setting in self.settings], predict, self.is_allowed)

    def setup(self, settings: Settings, times: Mapping[str, ServiceTimes]) -> Setup | None:
        """What the formula is asked; None where no times are known."""
        threads = settings.get(backends.THREADS, "")
        found = times.get(threads) or times.get("")
        if found is None or not math.isfinite(self.facts.bound):
            return None
        group = self.config.instance_group[0] if self.config.instance_group else None
        instances = int(settings.get(scheduling.INSTANCES, group.count if group else 1))
        batch = max(1, int(settings.get(scheduling.BATCH, self.config.max_batch_size)))
        is_batching = self.config.dynamic_batching is not None or settings.get(scheduling.BATCHER) == scheduling.ON
        delay = scheduling.delay_seconds(settings.get(scheduling.DELAY, "0us"))
        contention = 1.0
        if group is not None and group.kind is InstanceKind.GPU:
            contention = float(instances)  # they share the device
        elif threads:
            contention = max(1.0, instances * backends.thread_count(threads, self.facts.cores) / self.facts.cores)
        else:
            contention = max(1.0, instances / self.facts.cores)
        return Setup(found, instances, batch if is_batching else 1, delay if is_batching else 0.0, contention)

    def is_allowed(self, settings: Settings) -> bool:
        """Whether options go together; of what may not, that is."""
        is_batching = self.config.dynamic_batching is not None or settings.get(scheduling.BATCHER) == scheduling.ON
        delay = settings.get(scheduling.DELAY, "0us")
        preferred = settings.get(scheduling.PREFERRED, scheduling.NO_SIZES)
        if not is_batching and (delay != "0us" or settings.get(scheduling.ADAPT) == scheduling.ON):
            return False
        if settings.get(scheduling.ADAPT) == scheduling.ON and (delay != "0us" or preferred != scheduling.NO_SIZES):
            return False
        if preferred != scheduling.NO_SIZES:
            sizes = map(int, preferred.split("+"))
            if delay == "0us" or max(sizes) > int(settings.get(scheduling.BATCH, "0")):
                return False
        is_in_loop = settings.get(backends.ISOLATION) == "in_loop"
        return not (is_in_loop and settings.get(scheduling.INSTANCES, "1") != "1")


def model_space(config: ModelConfig, facts: Facts) -> ModelSpace:
    """From a completed configuration."""
    settings: list[Setting] = []
    left_out: dict[str, str] = {}
    if config.is_ensemble:
        left_out["instances, batching, backend"] = "an ensemble has none; analyze its models"
    elif config.backend in _ENGINES:
        left_out["instances, batching, backend"] = f"backend {config.backend} schedules on its own"
    else:
        _instances(config, facts, settings, left_out)
        _batching(config, facts, settings, left_out)
        _backend(config, facts, settings, left_out)
    _cache(config, facts, settings, left_out)
    return ModelSpace(config, facts, tuple(each for each in settings if len(each.axis.options) > 1), left_out)


def _instances(config: ModelConfig, facts: Facts, settings: list[Setting], left_out: dict[str, str]) -> None:
    groups = config.instance_group
    if len(groups) != 1:
        left_out[scheduling.INSTANCES] = f"it has {len(groups)} instance groups"
        return
    [group] = groups
    settings.append(scheduling.instances(config, facts))
    if not facts.host_policies:
        left_out[backends.POLICY] = "the server has none (--host-policy)"
    elif group.kind is not InstanceKind.CPU:
        left_out[backends.POLICY] = f"its instances are {group.kind.value}"
    else:
        settings.append(backends.host_policy(config, facts))


def _batching(config: ModelConfig, facts: Facts, settings: list[Setting], left_out: dict[str, str]) -> None:
    if config.sequence_batching is not None:
        left_out["batching"] = "sequences are batched by slots, which clients depend on"
    elif not config.is_batching:
        left_out["batching"] = "max_batch_size is 0: its tensors have no batch dimension"
    else:
        settings += scheduling.batching(config, facts)
        if config.parameter(ADAPTIVE):
            left_out[scheduling.ADAPT] = "it is on already"
        elif not math.isfinite(facts.bound):
            left_out[scheduling.ADAPT] = "there is no bound to keep"
        else:
            settings.append(scheduling.adaptive(facts))
        if facts.shape_rules and not config.parameter(SHAPE_RULES):
            settings.append(backends.padding(facts))
        elif config.parameter(SHAPE_RULES):
            left_out[backends.PADDING] = "it has shape rules already"
        else:
            left_out[backends.PADDING] = "the data has no requests of different shapes that could be padded"


def _backend(config: ModelConfig, facts: Facts, settings: list[Setting], left_out: dict[str, str]) -> None:
    is_on_cpu = all(group.kind is InstanceKind.CPU for group in config.instance_group)
    if config.backend in backends.THREAD_PARAMETERS and is_on_cpu:
        settings.append(backends.threads(config, facts))
    elif config.backend in backends.THREADS_OF_THE_PROCESS:
        left_out[backends.THREADS] = f"those of {config.backend} belong to the process: the first load decides"
    if config.backend == "python":
        settings.append(backends.isolation(config, facts))
        if not facts.allows_in_process:
            left_out["in_process, in_loop"] = "not allowed (--backend-config=python,allow-in-process=true)"


def _cache(config: ModelConfig, facts: Facts, settings: list[Setting], left_out: dict[str, str]) -> None:
    if config.sequence_batching is not None or config.is_decoupled:
        left_out[backends.CACHE] = "not for sequences and decoupled models"
    elif not facts.has_cache:
        left_out[backends.CACHE] = "needs a server with a cache (--cache-config) and data that repeats as clients' does"
    else:
        settings.append(backends.cache(config))
