"""Options of the pytorch backend, from the `parameters` of a configuration.

The keys, defaults and texts are those of Triton's pytorch backend; `AUTOCAST_DTYPE` is our own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch

from backends.parameters import parse_bool, parse_int
from protocol.errors import InvalidArgument
from repository.model_config import ModelConfig

AUTOCAST = "AUTOCAST_DTYPE"
COMPILE = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
_AUTOCAST_DTYPES = {"FP16": torch.float16, "BF16": torch.bfloat16}
_COMPILE_KEYS = frozenset({"fullgraph", "dynamic", "backend", "mode", "options", "disable"})


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Settings that the library has once for the whole process; None where the configuration leaves them alone."""

    intra_op_thread_count: int | None = None
    inter_op_thread_count: int | None = None
    tensor_fuser: bool | None = None
    jit_profiling: bool | None = None
    jit_executor: bool | None = None
    disable_cudnn: bool | None = None


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """`compile` is None where the configuration does not ask for `torch.compile`."""

    process: ProcessOptions = field(default_factory=ProcessOptions)
    is_optimized: bool = True
    is_inference: bool = True
    shares_weights: bool = False
    cleans_cache: bool = False
    autocast: torch.dtype | None = None
    compile: dict[str, Any] | None = None


def read_options(config: ModelConfig) -> TorchOptions:
    """Raises InvalidArgument for a value that does not parse or is not known."""

    def boolean(key: str) -> bool | None:
        text = config.parameter(key)
        return parse_bool(text, place=_place(config, key)) if text else None

    def count(key: str) -> int | None:
        text = config.parameter(key)
        if not text:
            return None
        value = parse_int(text, place=_place(config, key))
        if value < 1:
            raise InvalidArgument(f"{_place(config, key)}: expected a number of threads from 1 on, got '{text}'")
        return value

    boolean("ENABLE_NVFUSER")  # of old releases; it must be a boolean, and has no effect
    cleans = boolean("ENABLE_CACHE_CLEANING")
    if cleans is None:
        cleans = boolean("CACHE_CLEANING_ENABLED")  # the name that Triton has for it where the model is compiled
    return TorchOptions(
        process=ProcessOptions(
            intra_op_thread_count=count("INTRA_OP_THREAD_COUNT"),
            inter_op_thread_count=count("INTER_OP_THREAD_COUNT"),
            tensor_fuser=boolean("ENABLE_TENSOR_FUSER"),
            jit_profiling=boolean("ENABLE_JIT_PROFILING"),
            jit_executor=boolean("ENABLE_JIT_EXECUTOR"),
            disable_cudnn=boolean("DISABLE_CUDNN"),
        ),
        is_optimized=not boolean("DISABLE_OPTIMIZED_EXECUTION"),
        is_inference=boolean("INFERENCE_MODE") is not False,
        shares_weights=bool(boolean("ENABLE_WEIGHT_SHARING")),
        cleans_cache=bool(cleans),
        autocast=_read_autocast(config),
        compile=_read_compile(config),
    )


def _read_autocast(config: ModelConfig) -> torch.dtype | None:
    text = config.parameter(AUTOCAST)
    if text and text not in _AUTOCAST_DTYPES:
        raise InvalidArgument(f"{_place(config, AUTOCAST)}: expected {' or '.join(_AUTOCAST_DTYPES)}, got '{text}'")
    return _AUTOCAST_DTYPES.get(text)


def _read_compile(config: ModelConfig) -> dict[str, Any] | None:
    text = config.parameter(COMPILE)
    if not text:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"{_place(config, COMPILE)}: expected a JSON object, got '{text}' ({error})") from None
    if not isinstance(found, dict):
        raise InvalidArgument(f"{_place(config, COMPILE)}: expected a JSON object, got '{text}'")
    for key in found:
        if key not in _COMPILE_KEYS:
            known = ", ".join(sorted(_COMPILE_KEYS))
            raise InvalidArgument(
                f"{_place(config, COMPILE)}: '{key}' is not an optional parameter for 'torch.compile'; "
                f"known are: {known}"
            )
    return found


def _place(config: ModelConfig, key: str) -> str:
    return f"model '{config.name}', parameter '{key}'"
