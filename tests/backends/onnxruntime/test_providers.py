"""Execution providers and their options, as plain data; no provider but the CPU's is started."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from backends.interface import InstanceSpec, ModelSource
from backends.onnxruntime import providers
from backends.onnxruntime.providers import CPU, CUDA, OPENVINO, TENSORRT, check_started, providers_for
from protocol.errors import InvalidArgument, Unavailable
from repository.model_config import InstanceKind
from repository.pbtxt import parse_pbtxt

ALL = [TENSORRT, CUDA, OPENVINO, CPU]


def spec_of(*config: str, kind: InstanceKind = InstanceKind.GPU, device_id: int = 0) -> InstanceSpec:
    parsed = parse_pbtxt('name: "m"\n' + "\n".join(config), source="config.pbtxt")
    return InstanceSpec(ModelSource("m", 1, Path("/nowhere"), parsed), "m_0_0", kind, device_id)


def accelerator(name: str, *parameters: tuple[str, str], where: str = "gpu") -> str:
    entries = "".join(f'parameters {{ key: "{key}" value: "{value}" }} ' for key, value in parameters)
    return (
        f"optimization {{ execution_accelerators {{ {where}_execution_accelerator "
        f'[ {{ name: "{name}" {entries} }} ] }} }}'
    )


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


@pytest.mark.parametrize("kind", [InstanceKind.CPU, InstanceKind.MODEL])
def test_other_kinds_than_gpu_run_on_the_cpu(kind: InstanceKind) -> None:
    config = accelerator("tensorrt")  # concerns GPU instances only
    assert providers_for(spec_of(config, kind=kind), ALL) == [(CPU, {})]


def test_a_gpu_instance_has_cuda_on_its_device_and_the_cpu_last() -> None:
    assert providers_for(spec_of(device_id=3), ALL) == [(CUDA, {"device_id": "3"}), (CPU, {})]


def test_cuda_parameters_pass_by_name_and_booleans_are_checked() -> None:
    config = accelerator("cuda", ("cudnn_conv_use_max_workspace", "1"), ("do_copy_in_default_stream", "off"))
    (_, options), _ = providers_for(spec_of(config), ALL)
    assert options == {"cudnn_conv_use_max_workspace": "1", "do_copy_in_default_stream": "0", "device_id": "0"}
    broken = accelerator("cuda", ("use_ep_level_unified_stream", "maybe"))
    with pytest.raises(InvalidArgument, match=r"accelerator 'cuda', parameter 'use_ep_level_unified_stream'.*boolean"):
        providers_for(spec_of(broken), ALL)


def test_the_old_cuda_keys_win_over_the_accelerators() -> None:
    config = (
        accelerator("cuda", ("gpu_mem_limit", "1"), ("arena_extend_strategy", "kNextPowerOfTwo")),
        parameter("gpu_mem_limit", "1073741824"),
        parameter("cudnn_conv_algo_search", "1"),
        parameter("arena_extend_strategy", "1"),
        parameter("do_copy_in_default_stream", "false"),
    )
    (_, options), _ = providers_for(spec_of(*config), ALL)
    assert options == {
        "gpu_mem_limit": "1073741824",
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
        "do_copy_in_default_stream": "0",
        "device_id": "0",
    }


@pytest.mark.parametrize("key", ["cudnn_conv_algo_search", "arena_extend_strategy"])
def test_an_unknown_number_of_an_old_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgument, match=f"unsupported {key} value '7' is requested"):
        providers_for(spec_of(parameter(key, "7")), ALL)


TENSORRT_PARAMETERS = [
    ("precision_mode", "FP32", {}),
    ("precision_mode", "FP16", {"trt_fp16_enable": "1"}),
    ("precision_mode", "BF16", {"trt_bf16_enable": "1"}),
    ("precision_mode", "INT8", {"trt_int8_enable": "1"}),
    ("max_workspace_size_bytes", "1024", {"trt_max_workspace_size": "1024"}),
    ("int8_calibration_table_name", "t", {"trt_int8_calibration_table_name": "t"}),
    ("int8_use_native_calibration_table", "true", {"trt_int8_use_native_calibration_table": "1"}),
    ("trt_min_subgraph_size", "5", {"trt_min_subgraph_size": "5"}),
    ("trt_engine_cache_enable", "on", {"trt_engine_cache_enable": "1"}),
    ("trt_engine_cache_path", "/cache", {"trt_engine_cache_path": "/cache"}),
]


@pytest.mark.parametrize(("key", "value", "expected"), TENSORRT_PARAMETERS)
def test_tensorrt_goes_before_cuda_with_its_parameters(key: str, value: str, expected: dict[str, str]) -> None:
    found = providers_for(spec_of(accelerator("tensorrt", (key, value)), device_id=1), ALL)
    assert found == [(TENSORRT, {"device_id": "1", **expected}), (CUDA, {"device_id": "1"}), (CPU, {})]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("precision_mode", "FP8", "unsupported precision mode 'FP8' is requested"),
        ("trt_dla_core", "first", "parameter 'trt_dla_core': failed to convert 'first' to integral number"),
        ("trt_dla_enable", "maybe", "parameter 'trt_dla_enable': failed to convert 'maybe' to boolean"),
        ("speed", "1", "unknown parameter 'speed' is provided for TensorRT Execution Accelerator"),
    ],
)
def test_a_tensorrt_parameter_that_is_not_known_is_refused(key: str, value: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        providers_for(spec_of(accelerator("tensorrt", (key, value))), ALL)


def openvino(threads: int = 0, available: list[str] | None = None) -> list[providers.Provider]:
    spec = spec_of(accelerator("openvino", where="cpu"), kind=InstanceKind.CPU)
    return providers_for(spec, ALL if available is None else available, threads)


def test_openvino_goes_before_the_cpu_with_the_threads_of_the_session() -> None:
    assert openvino() == [(OPENVINO, {"device_type": "CPU"}), (CPU, {})]
    assert openvino(2) == [(OPENVINO, {"device_type": "CPU", "num_of_threads": "2"}), (CPU, {})]


@pytest.mark.parametrize(
    ("installed", "remedy"),
    [
        ({"onnxruntime"}, "pip uninstall onnxruntime, then pip install 'onnxruntime-openvino'"),
        (
            {"onnxruntime", "onnxruntime-openvino"},
            "another onnxruntime package has overwritten it: pip uninstall all of them, then pip install 'onnxrun",
        ),
    ],
)
def test_a_package_without_openvino_says_what_to_install(
    installed: set[str], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "_is_installed", installed.__contains__)
    with pytest.raises(InvalidArgument) as caught:
        openvino(available=[CPU])
    assert caught.value.message.startswith("unknown Execution Accelerator 'openvino' is requested for model 'm'")
    assert "has no OpenVINOExecutionProvider, but only CPUExecutionProvider" in caught.value.message
    assert remedy in caught.value.message
    assert caught.value.message.endswith("or leave the accelerator out")


def test_openvino_is_no_accelerator_of_gpus_and_tensorrt_none_of_cpus() -> None:
    for name, where, kind in (("openvino", "gpu", InstanceKind.GPU), ("tensorrt", "cpu", InstanceKind.CPU)):
        with pytest.raises(
            InvalidArgument, match=f"unknown Execution Accelerator '{name}' is requested for model 'm';"
        ):
            providers_for(spec_of(accelerator(name, where=where), kind=kind), ALL)


@pytest.mark.parametrize(("where", "kind"), [("gpu", InstanceKind.GPU), ("cpu", InstanceKind.CPU)])
def test_an_unknown_accelerator_is_refused(where: str, kind: InstanceKind) -> None:
    with pytest.raises(InvalidArgument, match="unknown Execution Accelerator 'magic' is requested for model 'm'"):
        providers_for(spec_of(accelerator("magic", where=where), kind=kind), ALL)


@pytest.mark.parametrize(
    ("config", "available", "missing"), [("", [CPU], CUDA), (accelerator("tensorrt"), [CUDA, CPU], TENSORRT)]
)
def test_a_provider_that_the_package_lacks_says_what_to_install(
    config: str, available: list[str], missing: str
) -> None:
    with pytest.raises(Unavailable) as caught:
        providers_for(spec_of(config), available)
    text = caught.value.message
    assert f"instance 'm_0_0' of KIND_GPU needs {missing}" in text
    assert "pip install 'trioton[gpu]', or 'trioton[gpu-cuda12]' for CUDA 12" in text
    assert "kind: KIND_CPU" in text


def test_two_onnxruntimes_in_one_environment_are_named_as_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "version", lambda name: "1.0")
    with pytest.raises(Unavailable, match="both onnxruntime and onnxruntime-gpu are installed"):
        providers_for(spec_of(), [CPU])


def test_the_gpu_is_preferred_only_where_its_package_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_cpu(name: str) -> str:
        if name == "onnxruntime":
            return "1.0"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(providers, "version", only_cpu)
    assert not providers.is_gpu_package_installed()
    monkeypatch.setattr(providers, "version", lambda name: "1.0")
    assert providers.is_gpu_package_installed()


def test_a_session_that_fell_back_is_refused() -> None:
    wanted = providers_for(spec_of(device_id=1), ALL)
    check_started(spec_of(), wanted, [CUDA, CPU])
    with pytest.raises(Unavailable, match="CUDAExecutionProvider did not start on device 1"):
        check_started(spec_of(device_id=1), wanted, [CPU])


def test_openvino_that_did_not_start_is_no_matter_of_a_gpu() -> None:
    with pytest.raises(Unavailable) as caught:
        check_started(spec_of(kind=InstanceKind.CPU), openvino(), [CPU])
    assert (
        "OpenVINOExecutionProvider did not start; the session would run on CPUExecutionProvider" in caught.value.message
    )
    assert "GPU" not in caught.value.message


@pytest.mark.parametrize(
    "key",
    [
        "trt_max_partition_iterations",
        "trt_min_subgraph_size",
        "trt_dla_core",
        "trt_builder_optimization_level",
        "trt_auxiliary_streams",
        "trt_ep_context_embed_mode",
    ],
)
def test_integers_of_tensorrt(key: str) -> None:
    (_, options), *_ = providers_for(spec_of(accelerator("tensorrt", (key, "3x"))), ALL)
    assert options[key] == "3"


@pytest.mark.parametrize(
    "key",
    [
        "trt_dla_enable",
        "trt_engine_cache_enable",
        "trt_dump_subgraphs",
        "trt_force_sequential_engine_build",
        "trt_context_memory_sharing_enable",
        "trt_layer_norm_fp32_fallback",
        "trt_timing_cache_enable",
        "trt_force_timing_cache",
        "trt_detailed_build_log",
        "trt_build_heuristics_enable",
        "trt_sparsity_enable",
        "trt_cuda_graph_enable",
        "trt_dump_ep_context_model",
    ],
)
def test_booleans_of_tensorrt(key: str) -> None:
    (_, options), *_ = providers_for(spec_of(accelerator("tensorrt", (key, "ON"))), ALL)
    assert options[key] == "1"


@pytest.mark.parametrize(
    "key",
    [
        "trt_engine_cache_path",
        "trt_engine_cache_prefix",
        "trt_timing_cache_path",
        "trt_tactic_sources",
        "trt_extra_plugin_lib_paths",
        "trt_profile_min_shapes",
        "trt_profile_max_shapes",
        "trt_profile_opt_shapes",
        "trt_ep_context_file_path",
    ],
)
def test_texts_of_tensorrt(key: str) -> None:
    (_, options), *_ = providers_for(spec_of(accelerator("tensorrt", (key, "a:1x2"))), ALL)
    assert options[key] == "a:1x2"


def test_both_accelerators_of_a_gpu() -> None:
    both = (
        'optimization { execution_accelerators { gpu_execution_accelerator [ { name: "cuda" '
        'parameters { key: "gpu_mem_limit" value: "9" } }, { name: "tensorrt" } ] } }'
    )
    assert providers_for(spec_of(both), ALL) == [
        (TENSORRT, {"device_id": "0"}), (CUDA, {"gpu_mem_limit": "9", "device_id": "0"}), (CPU, {}),
    ]  # fmt: skip
