"""Settings of backends, cores, padding and the response cache."""

from __future__ import annotations

import msgspec

from backends.python.settings import Isolation
from repository.model_config import InstanceKind, ModelConfig, ModelInstanceGroup, ModelResponseCache
from repository.shape_rules import PARAMETER as SHAPE_RULES
from trioton.analyze.space.axes import Axis
from trioton.analyze.space.facts import Facts, Setting
from trioton.analyze.space.scheduling import OFF, ON, with_parameter, without_parameter

THREADS, ISOLATION, POLICY, PADDING, CACHE = "threads", "isolation", "host-policy", "padding", "cache"
AUTOMATIC = "auto"

_replace = msgspec.structs.replace
_ISOLATION = "ISOLATION"
# Parameters that say how many threads an instance computes with, and what stands for the library's own choice.
THREAD_PARAMETERS = {
    "onnxruntime": ("intra_op_thread_count", "0"),
    "openvino": ("INFERENCE_NUM_THREADS", ""),
    "fil": ("cpu_nthread", "-1"),
}
# Backends whose threads belong to the process: the first load decides about them, so they cannot be tried by loads.
THREADS_OF_THE_PROCESS = frozenset({"jax", "pytorch", "tensorflow"})
_IN_WORKERS = (Isolation.PROCESS, Isolation.THREADS, Isolation.FORK)
_IN_SERVER = (Isolation.IN_PROCESS, Isolation.IN_LOOP)


def threads(config: ModelConfig, facts: Facts) -> Setting:
    """Of a backend in `THREAD_PARAMETERS`, on CPUs."""
    parameter, automatic = THREAD_PARAMETERS[config.backend]
    given = config.parameter(parameter, automatic)
    default = AUTOMATIC if given == automatic else given
    counts = [str(2**power) for power in range(10) if 2**power < facts.cores]
    numbers = sorted({*map(int, counts), *([int(given)] if default != AUTOMATIC else [])})
    ordered = (*map(str, numbers), AUTOMATIC)
    options = (default, *(each for each in ordered if each != default))

    def apply(changed: ModelConfig, option: str) -> ModelConfig:
        if option == AUTOMATIC:
            return without_parameter(changed, parameter)
        return with_parameter(changed, parameter, option)

    return Setting(Axis(THREADS, options, is_predicted=True, order=ordered), apply)


def thread_count(option: str, cores: int) -> int:
    return cores if option == AUTOMATIC else int(option)


def isolation(config: ModelConfig, facts: Facts) -> Setting:
    """Of the Python backend."""
    default = config.parameter(_ISOLATION, Isolation.PROCESS.value)
    kinds = (*_IN_WORKERS, *(_IN_SERVER if facts.allows_in_process else ()))
    options = tuple(dict.fromkeys((default, *(kind.value for kind in kinds))))
    return Setting(Axis(ISOLATION, options), lambda given, option: with_parameter(given, _ISOLATION, option))


def host_policy(config: ModelConfig, facts: Facts) -> Setting:
    """Of a single group on CPUs."""
    [group] = config.instance_group
    options = tuple(dict.fromkeys((group.host_policy or AUTOMATIC, *facts.host_policies)))

    def apply(given: ModelConfig, option: str) -> ModelConfig:
        groups = given.instance_group or (ModelInstanceGroup(kind=InstanceKind.CPU),)
        policy = "" if option == AUTOMATIC else option
        return _replace(given, instance_group=(_replace(groups[0], host_policy=policy), *groups[1:]))

    return Setting(Axis(POLICY, options), apply)


def padding(facts: Facts) -> Setting:
    """Requests of different shapes share batches."""

    def apply(given: ModelConfig, option: str) -> ModelConfig:
        if option == OFF:
            return without_parameter(given, SHAPE_RULES)
        return with_parameter(given, SHAPE_RULES, facts.shape_rules)

    return Setting(Axis(PADDING, (OFF, ON)), apply)


def cache(config: ModelConfig) -> Setting:
    is_on = config.response_cache is not None and config.response_cache.enable

    def apply(given: ModelConfig, option: str) -> ModelConfig:
        return _replace(given, response_cache=ModelResponseCache(enable=True) if option == ON else None)

    return Setting(Axis(CACHE, (ON, OFF) if is_on else (OFF, ON)), apply)
