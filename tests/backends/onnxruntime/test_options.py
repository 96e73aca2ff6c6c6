"""`parameters` and `optimization.graph.level` as session and run options."""

from __future__ import annotations

import onnxruntime
import pytest

from backends.onnxruntime.options import OnnxRuntimeOptions, read_options, run_options, session_options
from protocol.errors import InvalidArgument
from repository.model_config import ModelConfig
from repository.pbtxt import parse_pbtxt


def config_of(*parameters: tuple[str, str], more: str = "") -> ModelConfig:
    entries = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in parameters
    )
    return parse_pbtxt(f'name: "m"\n{entries}{more}', source="config.pbtxt")


def test_nothing_configured_is_the_librarys_own_choice() -> None:
    assert read_options(config_of()) == OnnxRuntimeOptions()
    made, default = session_options(OnnxRuntimeOptions()), onnxruntime.SessionOptions()
    for name in ("intra_op_num_threads", "inter_op_num_threads", "execution_mode", "enable_cpu_mem_arena"):
        assert getattr(made, name) == getattr(default, name)
    assert made.enable_mem_pattern == default.enable_mem_pattern
    assert made.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL


def test_thread_counts_and_execution_mode() -> None:
    made = session_options(
        read_options(config_of(("intra_op_thread_count", "3"), ("inter_op_thread_count", "2"), ("execution_mode", "1")))
    )
    assert made.intra_op_num_threads == 3
    assert made.inter_op_num_threads == 2
    assert made.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL


@pytest.mark.parametrize("count", ["0", "-1"])
def test_thread_counts_that_are_not_positive_are_not_set(count: str) -> None:
    made = session_options(read_options(config_of(("intra_op_thread_count", count))))
    assert made.intra_op_num_threads == onnxruntime.SessionOptions().intra_op_num_threads


def test_memory_switches() -> None:
    made = session_options(read_options(config_of(("enable_mem_arena", "off"), ("enable_mem_pattern", "FALSE"))))
    assert made.enable_cpu_mem_arena is False
    assert made.enable_mem_pattern is False


def test_the_two_forwarded_keys() -> None:
    options = read_options(
        config_of(
            ("session.use_device_allocator_for_initializers", "1"),
            ("memory.enable_memory_arena_shrinkage", "cpu:0;gpu:0"),
        )
    )
    key = "session.use_device_allocator_for_initializers"
    assert session_options(options).get_session_config_entry(key) == "1"
    assert run_options(options).get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0;gpu:0"


@pytest.mark.parametrize(
    ("level", "name"),
    [
        (-1, "ORT_ENABLE_BASIC"),
        (0, "ORT_ENABLE_ALL"),
        (1, "ORT_ENABLE_EXTENDED"),
        (2, "ORT_DISABLE_ALL"),
        (3, "ORT_ENABLE_ALL"),
    ],
)
def test_graph_levels_have_the_backends_own_numbers(level: int, name: str) -> None:
    options = read_options(config_of(more=f"optimization {{ graph {{ level: {level} }} }}"))
    assert session_options(options).graph_optimization_level == getattr(onnxruntime.GraphOptimizationLevel, name)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("execution_mode", "2", r"Expected values for  execution_mode are 0 or 1 but got 2 \."),
        ("execution_mode", "x", "parameter 'execution_mode': failed to convert 'x' to integral number"),
        ("intra_op_thread_count", "many", "model 'm', parameter 'intra_op_thread_count': failed to convert 'many'"),
        ("enable_mem_arena", "maybe", "parameter 'enable_mem_arena': failed to convert 'maybe' to boolean"),
        ("enable_mem_pattern", "2", "parameter 'enable_mem_pattern': failed to convert '2' to boolean"),
    ],
)
def test_a_value_that_is_not_known_is_refused(key: str, value: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        read_options(config_of((key, value)))


def test_shrinking_an_arena_that_is_off_is_refused_at_load() -> None:
    parameters = (("enable_mem_arena", "0"), ("memory.enable_memory_arena_shrinkage", "cpu:0"))
    with pytest.raises(InvalidArgument, match="expected no CPU arena to shrink because enable_mem_arena is '0'"):
        read_options(config_of(*parameters))


def test_unknown_keys_and_empty_values_are_ignored() -> None:
    config = config_of(("session.disable_prepacking", "1"), ("intra_op_thread_count", ""))
    assert read_options(config) == OnnxRuntimeOptions()
