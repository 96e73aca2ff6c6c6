"""Execution providers, from an instance's kind and `execution_accelerators`.

Everything here is plain data and runs without a GPU; what the CUDA and TensorRT providers do with these options has not
been seen running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TypeAlias

from backends.interface import InstanceSpec
from backends.parameters import parse_bool, parse_int
from backends.requirements import INSTALL_GPU
from protocol.errors import InvalidArgument, Unavailable
from repository.model_config import Accelerator, ExecutionAccelerators, InstanceKind, ModelConfig

Provider: TypeAlias = tuple[str, dict[str, str]]

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"

# The old form of CUDA options: keys of `parameters`, with the value that each number stands for.
_CUDNN_CONV_ALGO_SEARCH = {0: "EXHAUSTIVE", 1: "HEURISTIC", 2: "DEFAULT"}
_ARENA_EXTEND_STRATEGY = {0: "kNextPowerOfTwo", 1: "kSameAsRequested"}

# Booleans of the `cuda` accelerator; its other parameters pass unseen.
_CUDA_BOOLEANS = frozenset({"do_copy_in_default_stream", "use_ep_level_unified_stream"})

_CHECK_GPU = (
    "Check that the GPU's driver and the libraries of the provider (CUDA, cuDNN, TensorRT) are installed and match "
    "onnxruntime-gpu"
)

_PRECISION_MODES: dict[str, dict[str, str]] = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "BF16": {"trt_bf16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}
_TENSORRT_RENAMED_INTEGERS = {"max_workspace_size_bytes": "trt_max_workspace_size"}
_TENSORRT_RENAMED_STRINGS = {"int8_calibration_table_name": "trt_int8_calibration_table_name"}
_TENSORRT_RENAMED_BOOLEANS = {"int8_use_native_calibration_table": "trt_int8_use_native_calibration_table"}
_TENSORRT_INTEGERS = frozenset(
    {
        "trt_max_partition_iterations",
        "trt_min_subgraph_size",
        "trt_dla_core",
        "trt_builder_optimization_level",
        "trt_auxiliary_streams",
        "trt_ep_context_embed_mode",
    }
)
_TENSORRT_BOOLEANS = frozenset(
    {
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
    }
)
_TENSORRT_STRINGS = frozenset(
    {
        "trt_engine_cache_path",
        "trt_engine_cache_prefix",
        "trt_timing_cache_path",
        "trt_tactic_sources",
        "trt_extra_plugin_lib_paths",
        "trt_profile_min_shapes",
        "trt_profile_max_shapes",
        "trt_profile_opt_shapes",
        "trt_ep_context_file_path",
    }
)


def providers_for(spec: InstanceSpec, available: Sequence[str], threads: int = 0) -> list[Provider]:
    """The providers of one instance with their options, first choice first; `available` is what the package offers,
    and `threads` how many the CPU may use (0: as the library likes).

    KIND_GPU has CUDA, with TensorRT before it if asked for; the other kinds have the CPU, with OpenVINO before it if
    asked for. The CPU provider closes every list.

    Raises:
        InvalidArgument: an unknown accelerator, or a parameter or value of one that is not known.
        Unavailable: the installed package lacks a provider that the configuration needs.
    """
    config = spec.config
    accelerators = config.optimization.execution_accelerators if config.optimization else None
    accelerators = accelerators or ExecutionAccelerators()
    chosen: list[Provider] = []
    if spec.kind is InstanceKind.GPU:
        cuda: dict[str, str] = {}
        for accelerator in accelerators.gpu_execution_accelerator:
            if accelerator.name == "tensorrt":
                chosen.append((TENSORRT, {"device_id": str(spec.device_id), **_tensorrt_options(config, accelerator)}))
            elif accelerator.name == "cuda":
                cuda = _cuda_options(config, accelerator)
            else:
                raise _unknown_accelerator(config, accelerator)
        chosen.append((CUDA, {**cuda, **_old_cuda_options(config), "device_id": str(spec.device_id)}))
        for name, _ in chosen:
            _require(name, spec, available)
    else:
        for accelerator in accelerators.cpu_execution_accelerator:
            if accelerator.name != "openvino":
                raise _unknown_accelerator(config, accelerator)
            if OPENVINO not in available:
                raise _no_openvino(config, available)
            # The provider has a thread pool of its own.
            limit = {"num_of_threads": str(threads)} if threads > 0 else {}
            chosen.append((OPENVINO, {"device_type": "CPU", **limit}))
    return [*chosen, (CPU, {})]


def on_stream(providers: Sequence[Provider], number: int) -> list[Provider]:
    """The same, with those of GPUs computing on this CUDA stream."""
    stream = {"user_compute_stream": str(number)}
    return [(name, {**options, **stream} if name in (CUDA, TENSORRT) else options) for name, options in providers]


def check_started(spec: InstanceSpec, wanted: Sequence[Provider], started: Sequence[str]) -> None:
    """Refuse a session that fell back: the library only warns if a provider does not start.

    Raises:
        Unavailable: a wanted provider is not among those that the session runs with.
    """
    for name, _ in wanted:
        if name in started:
            continue
        where, remedy = f" on device {spec.device_id}", _CHECK_GPU
        if name == OPENVINO:
            where, remedy = "", "Check that the installed onnxruntime-openvino is whole: pip install it anew"
        raise Unavailable(
            f"model '{spec.source.name}', instance '{spec.name}': {name} did not start{where}; the session would run "
            f"on {', '.join(started)}. {remedy}"
        )


def is_gpu_package_installed() -> bool:
    """Whether the package with the CUDA provider is installed; asks the package metadata and imports nothing."""
    return _is_installed("onnxruntime-gpu")


def _require(provider: str, spec: InstanceSpec, available: Sequence[str]) -> None:
    if provider in available:
        return
    if _is_installed("onnxruntime") and _is_installed("onnxruntime-gpu"):
        remedy = (
            "both onnxruntime and onnxruntime-gpu are installed, and one has overwritten the other: "
            f"pip uninstall both, then {INSTALL_GPU}"
        )
    else:
        remedy = f"pip uninstall onnxruntime, then {INSTALL_GPU}"
    raise Unavailable(
        f"model '{spec.source.name}', instance '{spec.name}' of KIND_GPU needs {provider}, but the installed "
        f"onnxruntime package offers only {', '.join(available)}: {remedy}; or give its instance_group kind: KIND_CPU"
    )


def _is_installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


def _unknown_accelerator(config: ModelConfig, accelerator: Accelerator) -> InvalidArgument:
    return InvalidArgument(
        f"unknown Execution Accelerator '{accelerator.name}' is requested for model '{config.name}'; expected tensorrt "
        f"or cuda (gpu_execution_accelerator), openvino (cpu_execution_accelerator)"
    )


def _no_openvino(config: ModelConfig, available: Sequence[str]) -> InvalidArgument:
    if _is_installed("onnxruntime-openvino"):
        remedy = (
            "onnxruntime-openvino is installed, but another onnxruntime package has overwritten it: pip uninstall all "
            "of them, then pip install 'onnxruntime-openvino'"
        )
    else:
        remedy = "pip uninstall onnxruntime, then pip install 'onnxruntime-openvino'"
    return InvalidArgument(
        f"unknown Execution Accelerator 'openvino' is requested for model '{config.name}': the installed onnxruntime "
        f"package has no {OPENVINO}, but only {', '.join(available)}: {remedy}; or leave the accelerator out"
    )


def _cuda_options(config: ModelConfig, accelerator: Accelerator) -> dict[str, str]:
    return {
        key: _flag(value, _place(config, "cuda", key)) if key in _CUDA_BOOLEANS else value
        for key, value in accelerator.parameters.items()
    }


def _old_cuda_options(config: ModelConfig) -> dict[str, str]:
    """The four CUDA keys of `parameters`, as far as they are given; they win over the accelerator's."""
    options: dict[str, str] = {}
    for key, values in (
        ("cudnn_conv_algo_search", _CUDNN_CONV_ALGO_SEARCH),
        ("arena_extend_strategy", _ARENA_EXTEND_STRATEGY),
    ):
        if text := config.parameter(key):
            number = parse_int(text, place=f"model '{config.name}', parameter '{key}'")
            if number not in values:
                raise InvalidArgument(
                    f"unsupported {key} value '{text}' is requested for model '{config.name}'; "
                    f"expected one of {', '.join(map(str, values))}"
                )
            options[key] = values[number]
    if text := config.parameter("gpu_mem_limit"):
        options["gpu_mem_limit"] = str(parse_int(text, place=f"model '{config.name}', parameter 'gpu_mem_limit'"))
    if text := config.parameter("do_copy_in_default_stream"):
        options["do_copy_in_default_stream"] = _flag(
            text, f"model '{config.name}', parameter 'do_copy_in_default_stream'"
        )
    return options


def _tensorrt_options(config: ModelConfig, accelerator: Accelerator) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, value in accelerator.parameters.items():
        place = _place(config, "tensorrt", key)
        if key == "precision_mode":
            options.update(_precision(config, value))
        elif key in _TENSORRT_INTEGERS or key in _TENSORRT_RENAMED_INTEGERS:
            options[_TENSORRT_RENAMED_INTEGERS.get(key, key)] = str(parse_int(value, place=place))
        elif key in _TENSORRT_BOOLEANS or key in _TENSORRT_RENAMED_BOOLEANS:
            options[_TENSORRT_RENAMED_BOOLEANS.get(key, key)] = _flag(value, place)
        elif key in _TENSORRT_STRINGS or key in _TENSORRT_RENAMED_STRINGS:
            options[_TENSORRT_RENAMED_STRINGS.get(key, key)] = value
        else:
            raise InvalidArgument(
                f"unknown parameter '{key}' is provided for TensorRT Execution Accelerator of model '{config.name}'"
            )
    return options


def _precision(config: ModelConfig, mode: str) -> Mapping[str, str]:
    if mode not in _PRECISION_MODES:
        raise InvalidArgument(
            f"unsupported precision mode '{mode}' is requested for model '{config.name}'; "
            f"expected one of {', '.join(_PRECISION_MODES)}"
        )
    return _PRECISION_MODES[mode]


def _flag(value: str, place: str) -> str:
    """A boolean in the form that the library's own option parser takes."""
    return "1" if parse_bool(value, place=place) else "0"


def _place(config: ModelConfig, accelerator: str, key: str) -> str:
    return f"model '{config.name}', accelerator '{accelerator}', parameter '{key}'"
