"""Flags for GPUs and their memory pools. Part of `trioton.settings`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from backends.devices.devices import DEFAULT_POOL_BYTES
from backends.devices.pinned import DEFAULT_PINNED_BYTES
from repository.instance_groups import MINIMUM_COMPUTE_CAPABILITY
from trioton.flags.fields import boolean, flag, integer, of_device, repeatable, switch

DEVICES = "GPUs"


@dataclass(frozen=True, slots=True)
class PoolSize:
    """One `--cuda-memory-pool-byte-size`."""

    device_id: int
    byte_size: int


pool_size = of_device(PoolSize, integer(0), "--cuda-memory-pool-byte-size option format is '<device>:<bytes>'")


def compute_capability(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError("expected a compute capability such as 7.5")
    return value


@dataclass(frozen=True, kw_only=True)  # without slots, so that a class may have several such parts
class DeviceFlags:
    """The part of the settings that is about GPUs."""

    pinned_memory_pool_byte_size: int = flag(
        DEFAULT_PINNED_BYTES,
        integer(0),
        group=DEVICES,
        metavar="<bytes>",
        help="How much host memory is pinned at most, for copies from and to GPUs; where it is used up they are "
        "slower. 0 for none.",
    )
    cuda_memory_pool_byte_size: tuple[PoolSize, ...] = repeatable(
        pool_size,
        group=DEVICES,
        metavar="<device>:<bytes>",
        help=f"How much of this GPU's memory the server keeps for tensors, {DEFAULT_POOL_BYTES} where not given; what "
        "is needed beyond that is taken from the driver each time. May be given several times.",
    )
    min_supported_compute_capability: float = flag(
        MINIMUM_COMPUTE_CAPABILITY,
        compute_capability,
        group=DEVICES,
        metavar="<number>",
        help="GPUs of a lower CUDA compute capability are not used.",
    )
    gpu_fallback: bool = switch(
        group=DEVICES,
        help="Run instance groups of KIND_GPU on the CPU where no GPU can be used, instead of refusing their models.",
    )
    enable_peer_access: bool = flag(
        True,
        boolean,
        group=DEVICES,
        metavar="<boolean>",
        help="Let GPUs copy from each other directly, where they can.",
    )
