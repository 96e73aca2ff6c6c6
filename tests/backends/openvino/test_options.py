"""What the configuration's parameters become, and which values are refused."""

from __future__ import annotations

import re

import pytest

from backends.openvino.options import OpenVinoOptions, read_options
from protocol.errors import InvalidArgument
from tests.backends.helpers import source_of

# What a CPU gets in any case.
UNPINNED = {"ENABLE_CPU_PINNING": False}


def options(**parameters: str) -> OpenVinoOptions:
    entries = [f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}' for key, text in parameters.items()]
    return read_options(source_of("\n".join(('backend: "openvino"', *entries))).config)


def test_without_parameters_answers_do_not_depend_on_the_processor() -> None:
    assert options() == OpenVinoOptions(properties={"INFERENCE_PRECISION_HINT": "f32", **UNPINNED})


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("INFERENCE_NUM_THREADS", "3", 3),
        ("INFERENCE_NUM_THREADS", "0", 0),
        ("COMPILATION_NUM_THREADS", "2", 2),
        ("NUM_STREAMS", "auto", "AUTO"),
        ("NUM_STREAMS", "NUMA", "NUMA"),
        ("NUM_STREAMS", "4", 4),
        ("PERFORMANCE_HINT", "throughput", "THROUGHPUT"),
        ("PERFORMANCE_HINT", "CUMULATIVE_THROUGHPUT", "CUMULATIVE_THROUGHPUT"),
    ],
)
def test_properties_of_the_library(key: str, text: str, value: object) -> None:
    assert options(**{key: text}).properties == {key: value, "INFERENCE_PRECISION_HINT": "f32", **UNPINNED}


def test_half_precision_is_asked_for() -> None:
    assert options(HINT_BF16="Yes").properties == {"INFERENCE_PRECISION_HINT": "bf16", **UNPINNED}


def test_another_device_has_a_precision_of_its_own() -> None:
    assert options(TARGET_DEVICE="gpu.1") == OpenVinoOptions(device="GPU.1")


def test_flags() -> None:
    found = options(SKIP_OV_DYNAMIC_BATCHSIZE="yes", RESHAPE_IO_LAYERS="YES", ENABLE_BATCH_PADDING="no")
    assert (found.skips_dynamic_batch, found.pads_batches, found.takes_configured_dims) == (True, False, True)
    assert found.has_fixed_batch
    assert options(ENABLE_BATCH_PADDING="YES").has_fixed_batch
    assert not options().has_fixed_batch


@pytest.mark.parametrize(
    ("key", "text", "says"),
    [
        ("INFERENCE_NUM_THREADS", "-1", "to be a non-negative number, got -1"),
        ("COMPILATION_NUM_THREADS", "Many", "to be a non-negative number, got many"),
        ("NUM_STREAMS", "some", "to be either AUTO/NUMA/<int_value>, got some"),
        ("PERFORMANCE_HINT", "FAST", "to be LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got fast"),
        ("HINT_BF16", "TRUE", "to be YES, got true"),
        ("ENABLE_BATCH_PADDING", "true", "to be YES or NO, got true"),
        ("SKIP_OV_DYNAMIC_BATCHSIZE", "1", "to be YES or NO, got 1"),
        ("RESHAPE_IO_LAYERS", "on", "to be YES or NO, got on"),
    ],
)
def test_other_values_are_refused(key: str, text: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(f"expected the parameter '{key}' {says} (model 'm')")):
        options(**{key: text})
