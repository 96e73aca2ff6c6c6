"""JAX device of an instance. GPUs and TPUs have not been seen running."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from backends.interface import InstanceSpec
from protocol.errors import InvalidArgument, Unavailable
from repository.model_config import InstanceKind

CPU = "cpu"
_GPUS = ("cuda", "rocm")


def device_of(spec: InstanceSpec, platforms: Sequence[str]) -> Any:
    """The device of an instance of a function that was exported for these platforms: KIND_CPU and KIND_GPU say which,
    KIND_MODEL takes the first platform of the file that is here.

    Raises:
        InvalidArgument: the function was not exported for the device.
        Unavailable: there is no such device.
    """
    model, exported_for = spec.source.name, ", ".join(platforms)
    if spec.kind is InstanceKind.CPU:
        wanted: Sequence[str] = (CPU,)
    elif spec.kind is InstanceKind.GPU:
        wanted = _GPUS
    else:
        wanted = platforms
    suitable = [platform for platform in wanted if platform in platforms]
    if not suitable:
        raise InvalidArgument(
            f"unable to load model '{model}', it was exported for {exported_for}, and instance '{spec.name}' of "
            f"KIND_{spec.kind.name} needs {' or '.join(wanted)}; export it with platforms={[*platforms, wanted[0]]}"
        )
    number = spec.device_id if spec.kind is InstanceKind.GPU else 0
    for platform in suitable:
        devices = devices_of(platform)
        if number < len(devices):
            return devices[number]
    raise Unavailable(
        f"model instance '{spec.name}' needs device {number} of {' or '.join(suitable)}, but the installed jax "
        f"{jax.__version__} finds {_found()}; install a jax for this machine's devices, or use KIND_CPU"
    )


def devices_of(platform: str) -> list[Any]:
    """The devices of this process; none where the library has no such platform."""
    try:
        return list(jax.local_devices(backend=platform))
    except RuntimeError:
        return []


def _found() -> str:
    found = [f"{len(devices)} of {platform}" for platform in (CPU, *_GPUS, "tpu") if (devices := devices_of(platform))]
    return ", ".join(found) or "none"
