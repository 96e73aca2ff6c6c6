"""Session options of the onnxruntime backend, from `parameters` and `optimization` of a configuration.

The keys, defaults and texts are those of Triton's onnxruntime backend. `read_options` gives plain values;
`session_options` and `run_options` build the library's objects from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnxruntime

from backends.parameters import parse_bool, parse_int
from protocol.errors import InvalidArgument
from repository.model_config import ModelConfig

ARENA_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
DEVICE_ALLOCATOR = "session.use_device_allocator_for_initializers"

# The library's severities: 3 errors, 4 fatal only. Errors of a run come back as exceptions, so they are not logged too.
_LOG_ERRORS = 3
_LOG_FATAL = 4

# optimization.graph.level, numbered by Triton's onnxruntime backend in its own way; any other level is "all".
_GRAPH_LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}


@dataclass(frozen=True, slots=True)
class OnnxRuntimeOptions:
    """None stands for the library's own default. Thread counts of 0 are the library's default, all cores."""

    intra_op_thread_count: int = 0
    inter_op_thread_count: int = 0
    is_parallel: bool = False
    enable_mem_arena: bool | None = None
    enable_mem_pattern: bool | None = None
    arena_shrinkage: str = ""
    device_allocator: str = ""
    graph_level: str = "ORT_ENABLE_ALL"
    op_libraries: tuple[str, ...] = ()


def read_options(config: ModelConfig) -> OnnxRuntimeOptions:
    """Raises InvalidArgument for a value that does not parse or is not known."""

    def text(key: str) -> str:
        return config.parameter(key)

    def integer(key: str) -> int:
        return parse_int(text(key), place=_place(config, key)) if text(key) else 0

    def boolean(key: str) -> bool | None:
        return parse_bool(text(key), place=_place(config, key)) if text(key) else None

    mode = integer("execution_mode")
    if mode not in (0, 1):
        raise InvalidArgument(
            "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 "
            f"but got {mode} . (model '{config.name}')"
        )
    arena = boolean("enable_mem_arena")
    if arena is False and "cpu" in text(ARENA_SHRINKAGE):
        # The library accepts this pair, and then fails every run.
        raise InvalidArgument(
            f"{_place(config, ARENA_SHRINKAGE)}: expected no CPU arena to shrink because enable_mem_arena is "
            f"'{text('enable_mem_arena')}', got '{text(ARENA_SHRINKAGE)}'"
        )
    level = config.optimization.graph.level if config.optimization and config.optimization.graph else 0
    return OnnxRuntimeOptions(
        intra_op_thread_count=integer("intra_op_thread_count"),
        inter_op_thread_count=integer("inter_op_thread_count"),
        is_parallel=mode == 1,
        enable_mem_arena=arena,
        enable_mem_pattern=boolean("enable_mem_pattern"),
        arena_shrinkage=text(ARENA_SHRINKAGE),
        device_allocator=text(DEVICE_ALLOCATOR),
        graph_level=_GRAPH_LEVELS.get(level, "ORT_ENABLE_ALL"),
        op_libraries=config.model_operations.op_library_filename if config.model_operations else (),
    )


def session_options(options: OnnxRuntimeOptions) -> Any:
    """An `onnxruntime.SessionOptions`; a custom operator library that cannot be loaded raises the library's error."""
    made = onnxruntime.SessionOptions()
    made.log_severity_level = _LOG_ERRORS
    made.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, options.graph_level)
    if options.intra_op_thread_count > 0:
        made.intra_op_num_threads = options.intra_op_thread_count
    if options.inter_op_thread_count > 0:
        made.inter_op_num_threads = options.inter_op_thread_count
    if options.is_parallel:
        made.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    if options.enable_mem_arena is not None:
        made.enable_cpu_mem_arena = options.enable_mem_arena
    if options.enable_mem_pattern is not None:
        made.enable_mem_pattern = options.enable_mem_pattern
    if options.device_allocator:
        made.add_session_config_entry(DEVICE_ALLOCATOR, options.device_allocator)
    for library in options.op_libraries:
        made.register_custom_ops_library(library)
    return made


def run_options(options: OnnxRuntimeOptions) -> Any:
    """An `onnxruntime.RunOptions`."""
    made = onnxruntime.RunOptions()
    made.log_severity_level = _LOG_FATAL
    if options.arena_shrinkage:
        made.add_run_config_entry(ARENA_SHRINKAGE, options.arena_shrinkage)
    return made


def _place(config: ModelConfig, key: str) -> str:
    return f"model '{config.name}', parameter '{key}'"
