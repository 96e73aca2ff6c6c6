"""The fil backend: one forest shared by all instances, called from their threads.

The library computes on the CPU, and releases the GIL while it does.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import msgspec
import trio
from numpy.typing import NDArray

from backends.array_backend import ArrayBackend
from backends.fil.answers import Answering, answering
from backends.fil.forest import Forest
from backends.fil.model_file import read_model
from backends.fil.options import ForestOptions, check_hints, read_options
from backends.interface import InstanceSpec, ModelSource
from backends.signature_backend import Signature
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, Unsupported
from repository.completion import TensorSignature, check_against_model
from repository.model_config import InstanceKind, ModelConfig, ModelOutput

INPUT = "input__0"
OUTPUT = "output__0"
_SHAP_OUTPUT = "treeshap_output"


class FilBackend(ArrayBackend):
    """Runs forests of decision trees; see docs/backends/fil.md."""

    def __init__(self, spec: InstanceSpec) -> None:
        super().__init__(replace(spec, source=replace(spec.source, config=_squeezed(spec.config))))
        self._written = spec.config
        self._options = ForestOptions()
        self._forest: Forest | None = None
        self._answering: Answering | None = None

    @classmethod
    def signature(cls, source: ModelSource) -> Signature | None:
        options = read_options(source.config)
        return _signature(source.config, _open(source, options), options)

    @classmethod
    async def check_model(cls, source: ModelSource) -> None:
        await trio.to_thread.run_sync(cls._check, source, abandon_on_cancel=True)

    @classmethod
    def _check(cls, source: ModelSource) -> None:
        options = read_options(source.config)
        _check(source.config, _open(source, options), options)

    def load_model(self) -> None:
        if self.spec.kind is InstanceKind.GPU:
            raise InvalidArgument(
                f"model '{self.spec.source.name}': KIND_GPU cannot be used in CPU-only build; this backend computes on "
                f"the CPU, so its instance_group must be KIND_CPU or KIND_AUTO"
            )
        options = read_options(self._written)
        shared = self.spec.source.shared.setdefault("fil", _Shared())
        assert isinstance(shared, _Shared)
        with shared.lock:
            if shared.forest is None:
                check_hints(self._written)
                shared.forest = _open(self.spec.source, options)
        forest = shared.forest
        self._answering = _check(self._written, forest, options)
        if options.thread_count is None and self.spec.cpu_cores:
            options = replace(options, thread_count=len(self.spec.cpu_cores))
        self._options = options
        self._forest = forest

    def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        assert self._forest is not None
        assert self._answering is not None
        answers = self._answering.of(self._forest.scores(inputs[INPUT], self._options.thread_count))
        (entry,) = self.spec.config.output
        dims = entry.dims if entry.reshape is None else entry.reshape.shape
        return {OUTPUT: answers if dims else answers[:, 0]}

    def close_model(self) -> None:
        self._forest = None


class _Shared:
    """The forest that all instances of a load have in common."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.forest: Forest | None = None


def _open(source: ModelSource, options: ForestOptions) -> Forest:
    return Forest(read_model(source, options), name=source.name)


def _squeezed(config: ModelConfig) -> ModelConfig:
    """As Triton's clients have it: an output whose `dims` are [1] comes without that dimension. With a `reshape` the
    configuration has its own word on the shape."""

    def squeezed(entry: ModelOutput) -> ModelOutput:
        is_one = entry.dims == (1,) and entry.reshape is None
        return msgspec.structs.replace(entry, dims=()) if is_one else entry

    return msgspec.structs.replace(config, output=tuple(squeezed(entry) for entry in config.output))


def _signature(config: ModelConfig, forest: Forest, options: ForestOptions) -> Signature:
    entry = next((each for each in config.output if each.name == OUTPUT), None)
    dims = None if entry is None else entry.backend_dims
    width = answering(forest, options, _width(entry)).width
    shape = (-1,) if dims == () and width == 1 else (-1, width)
    return (
        (TensorSignature(INPUT, DataType.FP32, (-1, forest.feature_count)),),
        (TensorSignature(OUTPUT, DataType.FP32, shape),),
    )


def _width(entry: ModelOutput | None) -> int | None:
    if entry is None:
        return None
    dims = entry.backend_dims
    return dims[0] if dims else 1


def _check(config: ModelConfig, forest: Forest, options: ForestOptions) -> Answering:
    """Compare the configuration with the forest; how it is to answer.

    Raises:
        InvalidArgument: they differ, or the configuration does not batch.
        Unsupported: SHAP values are asked for.
    """
    if any(entry.name == _SHAP_OUTPUT for entry in config.output):
        raise Unsupported(
            f"model '{config.name}', output '{_SHAP_OUTPUT}': SHAP values are not computed here; leave this output out"
        )
    if config.max_batch_size <= 0:
        raise InvalidArgument(
            f"model '{config.name}': a model of the backend fil always batches; expected max_batch_size > 0, got "
            f"{config.max_batch_size}"
        )
    check_against_model(config, *_signature(config, forest, options))
    return answering(forest, options, _width(config.output[0]))
