"""Options of the tensorflow backend, from `parameters` and `optimization` of a configuration and the backend's
settings.

The keys, defaults and texts are those of Triton's tensorflow backend.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from backends.interface import ModelSource
from backends.parameters import parse_bool, parse_int
from protocol.errors import InvalidArgument, Unsupported
from repository.model_config import ExecutionAccelerators, ModelConfig

logger = logging.getLogger("trioton.tensorflow")

SERVE = "serve"
DEFAULT_SIGNATURE = "serving_default"
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")


@dataclass(frozen=True, slots=True)
class TensorFlowOptions:
    """`signature` is empty where the configuration names none. Thread counts of 0 are the library's choice.
    `graph_level` is None where the library is to decide."""

    intra_op_threads: int = 0
    inter_op_threads: int = 0
    has_own_threads: bool = False
    graph_tags: frozenset[str] = frozenset({SERVE})
    signature: str = ""
    session_share_count: int = 1
    init_ops_file: str = ""
    op_libraries: tuple[str, ...] = ()
    graph_level: int | None = None
    has_mixed_precision: bool = False
    places_softly: bool = True
    gpu_memory_fraction: float = 0.0

    @property
    def runs_in_callers_thread(self) -> bool:
        """One operator after the other needs no thread but the instance's own."""
        return self.inter_op_threads == 1 or self.inter_op_threads < 0


def read_options(source: ModelSource) -> TensorFlowOptions:
    """Raises InvalidArgument for a value that does not parse or is not known, and Unsupported for TensorRT."""
    config = source.config

    def integer(key: str, default: int = 0) -> int:
        text = config.parameter(key)
        return parse_int(text, place=f"model '{config.name}', parameter '{key}'") if text else default

    intra_op_threads = integer("TF_NUM_INTRA_THREADS")
    if intra_op_threads < 0:
        raise InvalidArgument(
            f"parameter 'TF_NUM_INTRA_THREADS' must be non-negative number for TensorFlow model '{config.name}'"
        )
    session_share_count = integer("MAX_SESSION_SHARE_COUNT", 1)
    if session_share_count < 1:
        raise InvalidArgument(
            f"parameter 'MAX_SESSION_SHARE_COUNT' must be positive number for TensorFlow model '{config.name}'"
        )
    own_threads = config.parameter("TF_USE_PER_SESSION_THREADS")
    tags = config.parameter("TF_GRAPH_TAG") or SERVE
    graph = config.optimization.graph if config.optimization else None
    soft_placement, memory_fraction = _read_settings(source)
    return TensorFlowOptions(
        intra_op_threads=intra_op_threads,
        inter_op_threads=integer("TF_NUM_INTER_THREADS"),
        has_own_threads=bool(own_threads)
        and parse_bool(own_threads, place=f"model '{config.name}', parameter 'TF_USE_PER_SESSION_THREADS'"),
        graph_tags=frozenset(tag.strip() for tag in tags.split(",")),
        signature=config.parameter("TF_SIGNATURE_DEF"),
        session_share_count=session_share_count,
        init_ops_file=config.parameter("TF_INIT_OPS_FILE"),
        op_libraries=config.model_operations.op_library_filename if config.model_operations else (),
        graph_level=graph.level if graph is not None and graph.level else None,
        has_mixed_precision=_read_accelerators(config),
        places_softly=soft_placement,
        gpu_memory_fraction=memory_fraction,
    )


def _read_settings(source: ModelSource) -> tuple[bool, float]:
    """Soft placement and the fraction of a GPU's memory, from `--backend-config`."""

    def place(key: str) -> str:
        return f"model '{source.name}', backend-config '{key}'"

    version = source.settings.get("version", "2")
    if version != "2":
        raise InvalidArgument(f"{place('version')}: expected 2, the TensorFlow that there is, got '{version}'")
    soft = source.settings.get("allow-soft-placement", "true")
    text = source.settings.get("gpu-memory-fraction", "0")
    found = _NUMBER.match(text)
    if found is None:
        raise InvalidArgument(f"{place('gpu-memory-fraction')}: failed to convert '{text}' to double number")
    fraction = float(found[1])
    if not 0 <= fraction <= 1:
        raise InvalidArgument(f"{place('gpu-memory-fraction')}: expected a number from 0 to 1, got '{text}'")
    return parse_bool(soft, place=place("allow-soft-placement")), fraction


def _read_accelerators(config: ModelConfig) -> bool:
    """Whether automatic mixed precision is asked for."""
    accelerators = config.optimization.execution_accelerators if config.optimization else None
    accelerators = accelerators or ExecutionAccelerators()
    if accelerators.cpu_execution_accelerator:
        raise InvalidArgument(
            f"CPU Execution Accelerator is not supported in TensorFlow backend (model '{config.name}')"
        )
    names = [accelerator.name for accelerator in accelerators.gpu_execution_accelerator]
    for name in names:
        if name not in ("tensorrt", "gpu_io", "auto_mixed_precision"):
            raise InvalidArgument(f"unknown Execution Accelerator '{name}' is requested (model '{config.name}')")
    if "tensorrt" in names:
        if "auto_mixed_precision" in names:
            raise InvalidArgument(
                f"Auto mixed precision can not be set with TFTRT optimization (model '{config.name}')"
            )
        raise Unsupported(
            f"model '{config.name}' asks for the Execution Accelerator 'tensorrt', and TensorFlow has no TensorRT "
            f"since its release 2.18; leave it out, or serve the model as ONNX with TensorRT"
        )
    if "gpu_io" in names:
        logger.warning("model '%s': 'gpu_io' changes nothing, as inputs and outputs are on the host", config.name)
    return "auto_mixed_precision" in names
