"""Instance groups: expands `instance_group` to one entry per instance, with its device.

Flow: configured groups -> [instance groups] with every default written in -> one placement per instance, for the model
actor to start. Source: Triton's `ModelInstanceGroup`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from protocol.errors import InvalidArgument
from repository.model_config import InstanceKind, ModelConfig, ModelInstanceGroup, ModelRateLimiter, SecondaryDevice

# Far above any real model, far below what would exhaust the machine before the first instance has loaded.
MAX_INSTANCES_PER_GROUP = 1024
# All groups together: a configuration may have as many groups as it likes.
MAX_INSTANCES = 4 * MAX_INSTANCES_PER_GROUP
MINIMUM_COMPUTE_CAPABILITY = 6.0


@dataclass(frozen=True, slots=True)
class UsableGpus:
    """The GPUs that instances may be on, by their ids: those with at least the minimum compute capability."""

    ids: tuple[int, ...] = ()
    minimum: float = MINIMUM_COMPUTE_CAPABILITY

    @classmethod
    def among(cls, compute_capabilities: Sequence[str], minimum: float) -> UsableGpus:
        """`compute_capabilities` are those of all GPUs, `7.5`, by id."""
        wanted = _version(str(minimum))
        ids = tuple(index for index, each in enumerate(compute_capabilities) if _version(each) >= wanted)
        return cls(ids, minimum)


NO_GPUS = UsableGpus()


def _version(text: str) -> tuple[int, int]:
    """As a pair: 12.0 is more than 9.0, and so would 8.10 be than 8.9."""
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


@dataclass(frozen=True, slots=True)
class InstancePlacement:
    """One instance to start. `kind` is CPU, GPU or MODEL; `device_id` is 0 for all but GPU. One that is passive is
    loaded and gets no requests. `host_policy` is the name of the policy, that of its kind and device where the group
    names none. `profiles` are those of a TensorRT engine that it uses, and `secondary_devices` what it runs on beside
    its GPU."""

    name: str
    kind: InstanceKind
    device_id: int
    rate_limiter: ModelRateLimiter | None = None
    is_passive: bool = False
    host_policy: str = ""
    profiles: tuple[str, ...] = ()
    secondary_devices: tuple[SecondaryDevice, ...] = ()


def normalise_instance_groups(
    config: ModelConfig, *, gpus: UsableGpus, backend_default_cpu_count: int, backend_prefers_gpu: bool
) -> tuple[ModelInstanceGroup, ...]:
    """The groups with name, kind, count and GPUs filled in; one group named after the model where there is none.

    KIND_AUTO goes to the GPUs if there are any, the group lists some or the backend prefers them, and all those
    listed can be used; else to the CPU.

    Raises:
        InvalidArgument: a group of KIND_GPU where there is no GPU, or none of the given number.
    """
    groups = config.instance_group or (ModelInstanceGroup(name=config.name),)
    normal: list[ModelInstanceGroup] = []
    for index, group in enumerate(groups):
        kind = group.kind
        if kind is InstanceKind.AUTO:
            wants_gpu = backend_prefers_gpu or bool(group.gpus)
            has_gpu = bool(gpus.ids) and all(gpu in gpus.ids for gpu in group.gpus)
            kind = InstanceKind.GPU if wants_gpu and has_gpu else InstanceKind.CPU
        default_count = backend_default_cpu_count if kind is InstanceKind.CPU else 1
        group = msgspec.structs.replace(
            group,
            name=group.name or f"{config.name}_{index}",
            kind=kind,
            count=group.count if group.count > 0 else default_count,
        )
        if kind is InstanceKind.GPU:
            _check_gpus(config, group, gpus)
            group = msgspec.structs.replace(group, gpus=group.gpus or gpus.ids)
        normal.append(group)
    return tuple(normal)


def gpu_groups(config: ModelConfig) -> tuple[str, ...]:
    """The groups of KIND_GPU, by their names or numbers."""
    groups = enumerate(config.instance_group)
    return tuple(group.name or str(index) for index, group in groups if group.kind is InstanceKind.GPU)


def on_the_cpu(config: ModelConfig) -> ModelConfig:
    """With the groups of KIND_GPU on the CPU, for a machine that has no GPU."""
    groups = tuple(
        msgspec.structs.replace(group, kind=InstanceKind.CPU, gpus=(), secondary_devices=())
        if group.kind is InstanceKind.GPU
        else group
        for group in config.instance_group
    )
    return msgspec.structs.replace(config, instance_group=groups)


def validate_instance_groups(config: ModelConfig) -> None:
    """Judge normalised groups.

    Raises:
        InvalidArgument: what is wrong with which group.
    """
    if not config.instance_group:
        raise InvalidArgument(f"must specify one or more 'instance group's for {config.name}")
    if all(group.passive for group in config.instance_group):
        raise InvalidArgument(f"all instance groups of model {config.name} are passive, so none would take a request")
    total = 0
    for group in config.instance_group:
        where = f"instance group {group.name} of model {config.name}"
        if group.kind in (InstanceKind.MODEL, InstanceKind.CPU) and group.gpus:
            raise InvalidArgument(f"{where} has kind {group.kind.value} but specifies one or more GPUs")
        if group.kind is InstanceKind.GPU and not group.gpus:
            raise InvalidArgument(f"{where} has kind KIND_GPU but specifies no GPUs")
        if group.profile and config.platform != "tensorrt_plan":
            # The missing blank is Triton's.
            raise InvalidArgument(
                f"{where} and platform {config.platform}specifies profile field which is only supported for TensorRT "
                "models"
            )
        for profile in group.profile:
            if not (profile.isascii() and profile.isdigit()):
                raise InvalidArgument(
                    f"{where} and platform {config.platform} specifies invalid profile {profile}. The field should "
                    "contain the string representation of a non-negative integer."
                )
        instances = group.count * max(1, len(group.gpus))
        if instances > MAX_INSTANCES_PER_GROUP:
            raise InvalidArgument(f"{where} has {instances} instances, at most {MAX_INSTANCES_PER_GROUP} are allowed")
        total += instances
    if total > MAX_INSTANCES:
        raise InvalidArgument(
            f"the {len(config.instance_group)} instance groups of model {config.name} have {total} instances together, "
            f"at most {MAX_INSTANCES} are allowed"
        )


def resolve_instances(config: ModelConfig) -> tuple[InstancePlacement, ...]:
    """The instances of a normalised configuration: `<group>_<n>`, n counting within the group over all its GPUs."""
    placements: list[InstancePlacement] = []
    for group in config.instance_group:
        devices = group.gpus if group.kind is InstanceKind.GPU else (0,)
        placements += (
            InstancePlacement(
                f"{group.name}_{number}",
                group.kind,
                device,
                group.rate_limiter,
                group.passive,
                group.host_policy or default_host_policy(group.kind, device),
                group.profile,
                group.secondary_devices,
            )
            for number, device in enumerate(devices * group.count)
        )
    return tuple(placements)


def default_host_policy(kind: InstanceKind, device_id: int) -> str:
    """Triton's: `cpu`, `gpu_<device>`, `model`."""
    word = kind.value.removeprefix("KIND_").lower()
    return f"{word}_{device_id}" if kind is InstanceKind.GPU else word


def _check_gpus(config: ModelConfig, group: ModelInstanceGroup, gpus: UsableGpus) -> None:
    where = f"instance group {group.name} of model {config.name}"
    if not gpus.ids:
        raise InvalidArgument(
            f"{where} has kind KIND_GPU but no GPUs are available: NVIDIA's driver shows none, or the "
            f"package nvidia-ml-py is missing (pip install 'trioton[gpu]', or 'trioton[gpu-cuda12]' for CUDA 12)"
        )
    for gpu in group.gpus:
        if gpu not in gpus.ids:
            available = ", ".join(map(str, gpus.ids))
            raise InvalidArgument(
                f"{where} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required CUDA "
                f"compute compatibility of {gpus.minimum:f} are: {available}"
            )
