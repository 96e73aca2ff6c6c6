"""Settings of instances and batching."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from actors.scheduling.batching.adaptive import PARAMETER as ADAPTIVE
from repository.model_config import (
    InstanceKind,
    ModelConfig,
    ModelDynamicBatching,
    ModelInstanceGroup,
    ModelParameter,
)
from trioton.analyze.space.axes import Axis
from trioton.analyze.space.facts import Facts, Setting

INSTANCES, BATCHER, BATCH, DELAY, PREFERRED, ADAPT = (
    "instances",
    "batcher",
    "batch",
    "delay",
    "preferred",
    "adaptive",
)
OFF, ON = "off", "on"
NO_SIZES = "none"

_replace = msgspec.structs.replace
_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_MOST_ON_GPU = 4
_LARGEST_BATCH = 128
_GROWTH = 4
# Of the bound: longer delays leave too little time for computing.
_DELAYS = (1 / 16, 1 / 8, 1 / 4)


def instances(config: ModelConfig, facts: Facts) -> Setting:
    """`config` has one group."""
    [group] = config.instance_group
    most = _MOST_ON_GPU if group.kind is InstanceKind.GPU else max(2, facts.cores)
    axis = _numbers(INSTANCES, group.count, [count for count in _COUNTS if count <= most])
    kind = group.kind

    def apply(given: ModelConfig, option: str) -> ModelConfig:
        groups = given.instance_group or (ModelInstanceGroup(kind=kind),)
        return _replace(given, instance_group=(_replace(groups[0], count=int(option)), *groups[1:]))

    return Setting(axis, apply)


def batching(config: ModelConfig, facts: Facts) -> Iterator[Setting]:
    """Of a model that can batch, without sequences."""
    least = max(1, facts.largest_request)
    most = min(_LARGEST_BATCH, max(16, _GROWTH * config.max_batch_size))
    sizes = [2**power for power in range(8) if least <= 2**power <= most]
    yield Setting(_numbers(BATCH, config.max_batch_size, sizes), _apply_batch)
    if config.dynamic_batching is None:
        yield Setting(Axis(BATCHER, (OFF, ON), is_predicted=True), _apply_batcher)
    now = config.dynamic_batching or ModelDynamicBatching()
    delays = [0, *(_round(1e6 * part * facts.bound) for part in _DELAYS if math.isfinite(facts.bound))]
    yield Setting(_numbers(DELAY, now.max_queue_delay_microseconds, delays, "us"), _apply_delay)
    preferred = _sizes_text(() if now.preferred_batch_size == (config.max_batch_size,) else now.preferred_batch_size)
    half = str(config.max_batch_size // 2)
    options = dict.fromkeys((preferred, NO_SIZES, *((half,) if config.max_batch_size >= 4 else ())))
    yield Setting(Axis(PREFERRED, tuple(options)), _apply_preferred)


def adaptive(facts: Facts) -> Setting:
    """Delay and batch sizes chosen by the server, for the same bound."""

    def apply(given: ModelConfig, option: str) -> ModelConfig:
        if option == OFF:
            return without_parameter(given, ADAPTIVE)
        now = given.dynamic_batching or ModelDynamicBatching()
        dynamic = _replace(now, max_queue_delay_microseconds=0, preferred_batch_size=())
        changed = _replace(given, dynamic_batching=dynamic)
        return with_parameter(changed, ADAPTIVE, str(round(1e6 * facts.bound)))

    return Setting(Axis(ADAPT, (OFF, ON)), apply)


def with_parameter(config: ModelConfig, name: str, value: str) -> ModelConfig:
    return _replace(config, parameters={**config.parameters, name: ModelParameter(string_value=value)})


def without_parameter(config: ModelConfig, name: str) -> ModelConfig:
    return _replace(config, parameters={key: value for key, value in config.parameters.items() if key != name})


def delay_seconds(option: str) -> float:
    return int(option.removesuffix("us")) / 1e6


def _numbers(name: str, default: int, others: Sequence[int], unit: str = "") -> Axis:
    """An axis of numbers, the default's first."""
    ordered = sorted({default, *others})
    options = (default, *(each for each in ordered if each != default))
    return Axis(
        name,
        tuple(f"{each}{unit}" for each in options),
        is_predicted=True,
        order=tuple(f"{each}{unit}" for each in ordered),
    )


def _round(value: float) -> int:
    """To two digits, so that a configuration is fit to be read."""
    return int(float(f"{value:.2g}"))


def _apply_batch(given: ModelConfig, option: str) -> ModelConfig:
    before, now = given.max_batch_size, int(option)
    changed = _replace(given, max_batch_size=now)
    dynamic = given.dynamic_batching
    if dynamic is None:
        return changed
    # A completed configuration prefers its own greatest size; no preferred size may be above the new one.
    sizes = () if dynamic.preferred_batch_size == (before,) else dynamic.preferred_batch_size
    kept = tuple(size for size in sizes if size <= now)
    return _replace(changed, dynamic_batching=_replace(dynamic, preferred_batch_size=kept))


def _apply_batcher(given: ModelConfig, option: str) -> ModelConfig:
    return _replace(given, dynamic_batching=ModelDynamicBatching() if option == ON else None)


def _apply_delay(given: ModelConfig, option: str) -> ModelConfig:
    microseconds = int(option.removesuffix("us"))
    return _changed(given, max_queue_delay_microseconds=microseconds)


def _apply_preferred(given: ModelConfig, option: str) -> ModelConfig:
    sizes = () if option == NO_SIZES else tuple(map(int, option.split("+")))
    return _changed(given, preferred_batch_size=sizes)


def _changed(given: ModelConfig, **fields: Any) -> ModelConfig:
    return _replace(given, dynamic_batching=_replace(given.dynamic_batching or ModelDynamicBatching(), **fields))


def _sizes_text(sizes: Sequence[int]) -> str:
    return "+".join(map(str, sizes)) or NO_SIZES
