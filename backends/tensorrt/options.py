"""Options of the tensorrt backend, from a configuration and the backend's settings.

The keys, values and texts are those of Triton's tensorrt backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from backends.parameters import parse_bool
from protocol.errors import InvalidArgument, Unsupported
from repository.model_config import (
    ModelConfig,
    ModelOptimizationPolicy,
    ModelPriority,
    OptimizationCuda,
    SecondaryDevice,
)

STATIC = "STATIC"
ON_PROFILE_CHANGE = "ON_PROFILE_CHANGE"
_POLICIES = ("DEVICE_BLOCKING", "BLOCKING")

# CUDA counts from 0 downward for what goes first, and takes numbers beyond a device's range as its ends.
_STREAM_PRIORITY = {ModelPriority.DEFAULT: 0, ModelPriority.MAX: -100, ModelPriority.MIN: 100}


@dataclass(frozen=True, slots=True)
class TensorRTOptions:
    """`allocation_strategy` is one of TensorRT's `ExecutionContextAllocationStrategy`, `plugins` are libraries."""

    allocation_strategy: str = STATIC
    is_version_compatible: bool = False
    plugins: tuple[str, ...] = ()
    stream_priority: int = 0
    cuda: OptimizationCuda = field(default_factory=OptimizationCuda)


def read_options(config: ModelConfig, settings: Mapping[str, str]) -> TensorRTOptions:
    """`settings` are the server's `--backend-config` for this backend.

    Raises:
        InvalidArgument: a value that is not known.
        Unsupported: an engine over several GPUs.
    """
    strategy = config.parameter("execution_context_allocation_strategy") or STATIC
    if strategy not in (STATIC, ON_PROFILE_CHANGE):
        raise InvalidArgument(
            f"Invalid value for 'execution_context_allocation_strategy': '{strategy}' for model instance "
            f"'{config.name}'. Supported values are 'STATIC' and 'ON_PROFILE_CHANGE'."
        )
    if (several := config.parameter("enable_multi_device")) and parse_bool(
        several, place=f"model '{config.name}', parameter 'enable_multi_device'"
    ):
        raise Unsupported(
            f"model '{config.name}', parameter 'enable_multi_device': engines over several GPUs are not supported; "
            f"build an engine for one GPU"
        )
    policy = settings.get("execution-policy", _POLICIES[0])
    if policy not in _POLICIES:
        raise InvalidArgument(
            f"backend-config 'execution-policy': expected {' or '.join(_POLICIES)}, got '{policy}' "
            f"(model '{config.name}')"
        )
    _flag(config, settings, "coalesce-request-input")
    optimization = config.optimization or ModelOptimizationPolicy()
    return TensorRTOptions(
        allocation_strategy=strategy,
        is_version_compatible=_flag(config, settings, "version-compatible"),
        plugins=tuple(path for path in settings.get("plugins", "").split(";") if path),
        stream_priority=_STREAM_PRIORITY[optimization.priority],
        cuda=optimization.cuda or OptimizationCuda(),
    )


def dla_core(secondary_devices: tuple[SecondaryDevice, ...], *, instance: str, model: str) -> int | None:
    """The DLA core that an instance runs on; None for none.

    Raises:
        InvalidArgument: there are several.
    """
    if len(secondary_devices) > 1:
        raise InvalidArgument(
            f"instance {instance} of model {model} must have either zero or or one secondary devices, "
            f"got {len(secondary_devices)}"
        )
    return secondary_devices[0].device_id if secondary_devices else None


def _flag(config: ModelConfig, settings: Mapping[str, str], key: str) -> bool:
    return parse_bool(settings.get(key, "false"), place=f"model '{config.name}', backend-config '{key}'")
