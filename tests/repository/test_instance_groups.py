"""Instance groups: defaults, rules, placements."""

from __future__ import annotations

import msgspec
import pytest

from protocol.errors import InvalidArgument
from repository.instance_groups import (
    InstancePlacement,
    UsableGpus,
    normalise_instance_groups,
    resolve_instances,
    validate_instance_groups,
)
from repository.model_config import InstanceKind, ModelConfig, ModelInstanceGroup, SecondaryDevice

AUTO, GPU, CPU, MODEL = InstanceKind.AUTO, InstanceKind.GPU, InstanceKind.CPU, InstanceKind.MODEL


def group(kind: InstanceKind, count: int = 1, gpus: tuple[int, ...] = (), name: str = "m_0") -> ModelInstanceGroup:
    return ModelInstanceGroup(name=name, kind=kind, count=count, gpus=gpus)


def normal(
    *groups: ModelInstanceGroup, gpu_count: int = 0, cpu_count: int = 1, prefers_gpu: bool = False
) -> tuple[ModelInstanceGroup, ...]:
    return normalise_instance_groups(
        ModelConfig(name="m", instance_group=groups),
        gpus=UsableGpus(tuple(range(gpu_count))),
        backend_default_cpu_count=cpu_count,
        backend_prefers_gpu=prefers_gpu,
    )


@pytest.mark.parametrize(
    ("gpu_count", "prefers_gpu", "expected"),
    [
        (0, False, group(CPU, 2, name="m")),
        (0, True, group(CPU, 2, name="m")),
        (2, False, group(CPU, 2, name="m")),
        (2, True, group(GPU, 1, (0, 1), name="m")),
    ],
)
def test_without_a_group_there_is_one_named_after_the_model(
    gpu_count: int, prefers_gpu: bool, expected: ModelInstanceGroup
) -> None:
    assert normal(gpu_count=gpu_count, cpu_count=2, prefers_gpu=prefers_gpu) == (expected,)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (group(AUTO), group(GPU, gpus=(0, 1))),
        (group(AUTO, gpus=(1,)), group(GPU, gpus=(1,))),
        (group(AUTO, gpus=(2,)), group(CPU, gpus=(2,))),
        (group(GPU), group(GPU, gpus=(0, 1))),
        (group(GPU, 3, (1,)), group(GPU, 3, (1,))),
        (group(GPU, 0, (1,)), group(GPU, 1, (1,))),
        (group(CPU, 0), group(CPU, 5)),
        (group(CPU, -3), group(CPU, 5)),
        (group(MODEL, 0), group(MODEL, 1)),
    ],
)
def test_defaults_with_two_gpus(given: ModelInstanceGroup, expected: ModelInstanceGroup) -> None:
    assert normal(given, gpu_count=2, cpu_count=5, prefers_gpu=True) == (expected,)


def test_listed_gpus_draw_an_automatic_group_to_the_gpu_whatever_the_backend_prefers() -> None:
    assert normal(group(AUTO, gpus=(0,)), gpu_count=1) == (group(GPU, gpus=(0,)),)
    assert normal(group(AUTO), gpu_count=1) == (group(CPU),)


def test_groups_without_a_name_are_numbered() -> None:
    groups = normal(group(CPU, name=""), group(CPU, name="mine"), group(CPU, name=""))
    assert [each.name for each in groups] == ["m_0", "mine", "m_2"]


@pytest.mark.parametrize(
    ("given", "gpu_count", "message"),
    [
        (
            group(GPU),
            0,
            "instance group m_0 of model m has kind KIND_GPU but no GPUs are available: NVIDIA's driver shows none, or "
            "the package nvidia-ml-py is missing (pip install 'trioton[gpu]', or 'trioton[gpu-cuda12]' for CUDA 12)",
        ),
        (
            group(GPU, gpus=(0, 2)),
            2,
            "instance group m_0 of model m specifies invalid or unsupported gpu id 2. GPUs with at least the minimum "
            "required CUDA compute compatibility of 6.000000 are: 0, 1",
        ),
        (
            group(GPU, gpus=(-1,)),
            1,
            "instance group m_0 of model m specifies invalid or unsupported gpu id -1. GPUs with at least the minimum "
            "required CUDA compute compatibility of 6.000000 are: 0",
        ),
    ],
)
def test_gpus_that_are_not_there(given: ModelInstanceGroup, gpu_count: int, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        normal(given, gpu_count=gpu_count)
    assert caught.value.message == message


def test_gpus_below_the_minimum_are_not_there() -> None:
    """Their numbers stay free: instances are on the others, and those that list one are refused."""
    gpus = UsableGpus.among(("7.5", "5.2", "12.0", "9.0"), 7.5)
    assert gpus == UsableGpus((0, 2, 3), 7.5)

    def placed(*groups: ModelInstanceGroup) -> tuple[ModelInstanceGroup, ...]:
        config = ModelConfig(name="m", instance_group=groups)
        return normalise_instance_groups(config, gpus=gpus, backend_default_cpu_count=1, backend_prefers_gpu=True)

    assert placed(group(GPU, 2)) == (group(GPU, 2, (0, 2, 3)),)
    assert placed(group(AUTO, gpus=(1,))) == (group(CPU, gpus=(1,)),)
    with pytest.raises(InvalidArgument) as caught:
        placed(group(GPU, gpus=(1,)))
    assert caught.value.message == (
        "instance group m_0 of model m specifies invalid or unsupported gpu id 1. GPUs with at least the minimum "
        "required CUDA compute compatibility of 7.500000 are: 0, 2, 3"
    )
    assert UsableGpus.among(("5.2",), 6.0).ids == ()


def profiled(*profiles: str) -> ModelInstanceGroup:
    return msgspec.structs.replace(group(GPU, gpus=(0,)), profile=profiles)


@pytest.mark.parametrize(
    ("groups", "platform", "message"),
    [
        ((), "", "must specify one or more 'instance group's for m"),
        (
            (group(CPU), group(MODEL, gpus=(0,))),
            "",
            "instance group m_0 of model m has kind KIND_MODEL but specifies one or more GPUs",
        ),
        (
            (group(CPU, gpus=(0,)),),
            "",
            "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs",
        ),
        ((group(GPU),), "", "instance group m_0 of model m has kind KIND_GPU but specifies no GPUs"),
        (
            (profiled("0"),),
            "onnxruntime_onnx",
            "instance group m_0 of model m and platform onnxruntime_onnxspecifies profile field which is only "
            "supported for TensorRT models",
        ),
        (
            (profiled("0", "x1"),),
            "tensorrt_plan",
            "instance group m_0 of model m and platform tensorrt_plan specifies invalid profile x1. The field should "
            "contain the string representation of a non-negative integer.",
        ),
        ((group(CPU, 1025),), "", "instance group m_0 of model m has 1025 instances, at most 1024 are allowed"),
        (
            (group(GPU, 600, (0, 1)),),
            "",
            "instance group m_0 of model m has 1200 instances, at most 1024 are allowed",
        ),
        (
            (group(CPU, 1000),) * 5,
            "",
            "the 5 instance groups of model m have 5000 instances together, at most 4096 are allowed",
        ),
    ],
)
def test_broken_rules(groups: tuple[ModelInstanceGroup, ...], platform: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        validate_instance_groups(ModelConfig(name="m", platform=platform, instance_group=groups))
    assert caught.value.message == message


def test_good_groups_pass() -> None:
    groups = (group(CPU, 1024), group(GPU, 512, (0, 1)), group(MODEL))
    validate_instance_groups(ModelConfig(name="m", instance_group=groups))
    validate_instance_groups(ModelConfig(name="m", platform="tensorrt_plan", instance_group=(profiled("0", "12"),)))


def test_instances_are_numbered_within_their_group() -> None:
    config = ModelConfig(
        name="m", instance_group=(group(CPU, 2, name="a"), group(GPU, 2, (0, 3), name="b"), group(MODEL, name="c"))
    )
    assert resolve_instances(config) == (
        InstancePlacement("a_0", CPU, 0, host_policy="cpu"),
        InstancePlacement("a_1", CPU, 0, host_policy="cpu"),
        InstancePlacement("b_0", GPU, 0, host_policy="gpu_0"),
        InstancePlacement("b_1", GPU, 3, host_policy="gpu_3"),
        InstancePlacement("b_2", GPU, 0, host_policy="gpu_0"),
        InstancePlacement("b_3", GPU, 3, host_policy="gpu_3"),
        InstancePlacement("c_0", MODEL, 0, host_policy="model"),
    )


def test_a_passive_group_has_passive_instances() -> None:
    groups = (
        ModelInstanceGroup(name="a", kind=CPU, count=1),
        ModelInstanceGroup(name="b", kind=CPU, count=2, passive=True),
    )
    placements = resolve_instances(ModelConfig(name="m", instance_group=groups))
    assert [(each.name, each.is_passive) for each in placements] == [("a_0", False), ("b_0", True), ("b_1", True)]


def test_some_group_must_take_requests() -> None:
    groups = (ModelInstanceGroup(name="a", kind=CPU, count=1, passive=True),)
    with pytest.raises(InvalidArgument, match="all instance groups of model m are passive"):
        validate_instance_groups(ModelConfig(name="m", instance_group=groups))


def test_a_group_may_name_its_host_policy() -> None:
    named = msgspec.structs.replace(group(GPU, 1, (0, 1), name="a"), host_policy="left")
    config = ModelConfig(name="m", instance_group=(named, group(GPU, 1, (1,), name="b")))
    assert [each.host_policy for each in resolve_instances(config)] == ["left", "left", "gpu_1"]


def test_instances_have_the_profiles_and_secondary_devices_of_their_group() -> None:
    core = SecondaryDevice(device_id=1)
    groups = (
        ModelInstanceGroup(name="a", kind=GPU, count=1, gpus=(0, 1), profile=("2", "0"), secondary_devices=(core,)),
        ModelInstanceGroup(name="b", kind=GPU, count=1, gpus=(0,)),
    )
    placements = resolve_instances(ModelConfig(name="m", instance_group=groups))
    assert [each.profiles for each in placements] == [("2", "0"), ("2", "0"), ()]
    assert [each.secondary_devices for each in placements] == [(core,), (core,), ()]
