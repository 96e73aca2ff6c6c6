"""What parameters, accelerators and the backend's settings become, and which values are refused."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

import pytest

pytest.importorskip("tensorflow")

from backends.tensorflow.options import TensorFlowOptions, read_options
from backends.tensorflow.session import device_of, session_config
from protocol.errors import InvalidArgument, ServerError, Unsupported
from repository.model_config import InstanceKind
from tests.backends.helpers import source_of, spec_of


def options(
    text: str = "", settings: Mapping[str, str] | None = None, parameters: Mapping[str, str] | None = None
) -> TensorFlowOptions:
    given = parameters or {}
    entries = [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in given.items()]
    return read_options(source_of("\n".join(('backend: "tensorflow"', text, *entries)), settings=settings))


def gpu_accelerators(*names: str) -> str:
    told = ", ".join(f'{{ name: "{name}" }}' for name in names)
    return f"optimization {{ execution_accelerators {{ gpu_execution_accelerator: [ {told} ] }} }}"


def test_without_parameters() -> None:
    assert options() == TensorFlowOptions()


def test_all_parameters() -> None:
    found = options(
        'model_operations { op_library_filename: "ops.so" } optimization { graph { level: 1 } }',
        {"allow-soft-placement": "false", "gpu-memory-fraction": "0.5"},
        {
            "TF_NUM_INTRA_THREADS": "2",
            "TF_NUM_INTER_THREADS": "3",
            "TF_USE_PER_SESSION_THREADS": "1",
            "TF_GRAPH_TAG": "serve,gpu",
            "TF_SIGNATURE_DEF": "predict",
            "MAX_SESSION_SHARE_COUNT": "4",
            "TF_INIT_OPS_FILE": "init.json",
        },
    )
    assert found == TensorFlowOptions(
        intra_op_threads=2,
        inter_op_threads=3,
        has_own_threads=True,
        graph_tags=frozenset({"serve", "gpu"}),
        signature="predict",
        session_share_count=4,
        init_ops_file="init.json",
        op_libraries=("ops.so",),
        graph_level=1,
        places_softly=False,
        gpu_memory_fraction=0.5,
    )


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        (
            {"TF_NUM_INTRA_THREADS": "-1"},
            "parameter 'TF_NUM_INTRA_THREADS' must be non-negative number for TensorFlow model 'm'",
        ),
        ({"TF_NUM_INTER_THREADS": "many"}, "failed to convert 'many' to integral number"),
        (
            {"MAX_SESSION_SHARE_COUNT": "0"},
            "parameter 'MAX_SESSION_SHARE_COUNT' must be positive number for TensorFlow model 'm'",
        ),
        ({"TF_USE_PER_SESSION_THREADS": "yes"}, "failed to convert 'yes' to boolean"),
    ],
)
def test_other_values_are_refused(parameters: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(says)):
        options(parameters=parameters)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"version": "1"}, "backend-config 'version': expected 2"),
        ({"gpu-memory-fraction": "2"}, "backend-config 'gpu-memory-fraction': expected a number from 0 to 1, got '2'"),
        ({"gpu-memory-fraction": "half"}, "failed to convert 'half' to double number"),
        ({"allow-soft-placement": "perhaps"}, "backend-config 'allow-soft-placement': failed to convert 'perhaps'"),
    ],
)
def test_other_settings_are_refused(settings: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(says)):
        options(settings=settings)


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        (
            'optimization { execution_accelerators { cpu_execution_accelerator: [ { name: "openvino" } ] } }',
            InvalidArgument,
            "CPU Execution Accelerator is not supported in TensorFlow backend",
        ),
        (gpu_accelerators("cuda"), InvalidArgument, "unknown Execution Accelerator 'cuda' is requested"),
        (gpu_accelerators("tensorrt"), Unsupported, "TensorFlow has no TensorRT since its release 2.18"),
        (
            gpu_accelerators("auto_mixed_precision", "tensorrt"),
            InvalidArgument,
            "Auto mixed precision can not be set with TFTRT optimization",
        ),
    ],
)
def test_accelerators_that_there_are_not(text: str, kind: type[ServerError], says: str) -> None:
    with pytest.raises(kind, match=re.escape(says)):
        options(text)


def test_accelerators_for_gpus(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert options(gpu_accelerators("auto_mixed_precision", "gpu_io")).has_mixed_precision
    assert "'gpu_io' changes nothing" in caplog.text


def test_what_a_session_is_made_with() -> None:
    source = source_of('backend: "tensorflow"')
    found = session_config(
        spec_of(source), TensorFlowOptions(intra_op_threads=2, inter_op_threads=3, has_own_threads=True, graph_level=-1)
    )
    assert (found.intra_op_parallelism_threads, found.inter_op_parallelism_threads) == (2, 3)
    assert found.use_per_session_threads
    assert found.allow_soft_placement
    assert dict(found.device_count) == {"GPU": 0}
    assert found.graph_options.optimizer_options.global_jit_level == -1
    levels = [
        session_config(spec_of(source), TensorFlowOptions(graph_level=level)).graph_options.optimizer_options
        for level in (1, 2, 3)
    ]
    assert [level.global_jit_level for level in levels] == [1, 2, 2]


def test_what_a_session_on_a_gpu_is_made_with() -> None:
    spec = spec_of(source_of('backend: "tensorflow"'), kind=InstanceKind.GPU)
    assert device_of(spec) == "/device:GPU:0"
    growing = session_config(spec, TensorFlowOptions(has_mixed_precision=True))
    assert growing.gpu_options.allow_growth
    assert not growing.device_count
    assert growing.graph_options.rewrite_options.auto_mixed_precision == 1
    given = session_config(spec, TensorFlowOptions(gpu_memory_fraction=0.5, places_softly=False))
    assert given.gpu_options.per_process_gpu_memory_fraction == 0.5
    assert not given.gpu_options.allow_growth
    assert not given.allow_soft_placement
