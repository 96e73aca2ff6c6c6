"""The tensorflow backend: a session per instance or shared, called from the instance's own thread.

The library releases the GIL while it runs. Instances on a GPU have not been seen running.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from backends.array_backend import ArrayBackend
from backends.interface import InstanceSpec, ModelSource
from backends.signature_backend import Signature, default_max_batch_size
from backends.tensorflow.completion import complete
from backends.tensorflow.errors import load_errors, run_errors
from backends.tensorflow.graph_def import describe_placeholders, read_graph_def
from backends.tensorflow.library import tf
from backends.tensorflow.options import TensorFlowOptions, read_options
from backends.tensorflow.saved_model import read_saved_model
from backends.tensorflow.session import Call, ModelFile, ModelSession, SharedSessions, device_of
from backends.tensorflow.thread_pools import THREAD_POOLS
from protocol.core import MemoryUsage
from protocol.errors import InvalidArgument, Unavailable
from repository.completion import check_against_model
from repository.model_config import InstanceKind, ModelConfig
from repository.sequence_tensors import hidden_outputs

SAVED_MODEL, GRAPH_DEF = "tensorflow_savedmodel", "tensorflow_graphdef"
_FILES = {SAVED_MODEL: "model.savedmodel", GRAPH_DEF: "model.graphdef"}


class TensorFlowBackend(ArrayBackend):
    """Runs SavedModels and GraphDefs; see docs/backends/tensorflow.md."""

    default_cpu_instance_count = 2
    prefers_gpu = bool(tf.test.is_built_with_cuda())

    def __init__(self, spec: InstanceSpec) -> None:
        super().__init__(spec)
        self._session: ModelSession | None = None
        self._sessions = SharedSessions()
        self._call: Call | None = None
        self._inputs: list[str] = []  # in the order of the call's arguments
        self._outputs: list[str] = []  # in the order of its results
        self._passed_on: dict[str, str] = {}  # outputs that are inputs
        self._copied: frozenset[str] = frozenset()
        self._byte_size = 0

    @classmethod
    async def complete_config(cls, source: ModelSource) -> ModelConfig:
        """Of a SavedModel, tensor by tensor; a GraphDef's configuration must be whole. Cancelled: leaves the reading to
        its thread."""
        return await trio.to_thread.run_sync(cls._complete, source, abandon_on_cancel=True)

    @classmethod
    def _complete(cls, source: ModelSource) -> ModelConfig:
        options, config = read_options(source), source.config
        if _platform(source) == GRAPH_DEF:
            if not (config.input and config.output):
                raise _incomplete(source)
            return config
        file = read_saved_model(_model_path(source), source, options)
        return complete(config, file.tensors, default_max_batch_size=default_max_batch_size(source))

    @classmethod
    def signature(cls, source: ModelSource) -> Signature | None:
        return _read(source, read_options(source)).tensors.signature(source.config)

    def load_model(self) -> None:
        spec, config = self.spec, self.spec.config
        options = read_options(spec.source)
        _require_device(spec)
        THREAD_POOLS.prepare(options, config.name)
        shared = spec.source.shared.setdefault(f"tensorflow {spec.kind.value} {spec.device_id}", SharedSessions())
        assert isinstance(shared, SharedSessions)
        self._sessions = shared
        self._session = shared.take(lambda: self._open(options), options.session_share_count)
        try:
            self._prepare_call(self._session, options)
        except BaseException:
            self.close_model()
            raise

    def _open(self, options: TensorFlowOptions) -> ModelSession:
        source = self.spec.source
        file = _read(source, options, device_of(self.spec))
        check_against_model(source.config, *file.tensors.signature(source.config))
        session = ModelSession(self.spec, options, file)
        self._byte_size = _size(_model_path(source))
        return session

    def _prepare_call(self, session: ModelSession, options: TensorFlowOptions) -> None:
        wanted = [entry.name for entry in (*self.spec.config.output, *hidden_outputs(self.spec.config))]
        fed = {each.tensor: each.name for each in session.tensors.inputs if not each.optional}
        results = {each.name: each.tensor for each in session.tensors.outputs}
        # The library does not give back what it is given.
        self._passed_on = {name: fed[results[name]] for name in wanted if results[name] in fed}
        self._inputs = list(fed.values())
        self._outputs = [name for name in wanted if name not in self._passed_on]
        self._copied = frozenset(name for name in self._outputs if session.is_changed_in_place(results[name]))
        # A pool's threads are bound to no cores.
        in_callers_thread = options.runs_in_callers_thread or (
            bool(self.spec.cpu_cores) and not options.has_own_threads
        )
        self._call = session.call(
            list(fed), [results[name] for name in self._outputs], in_callers_thread=in_callers_thread
        )

    def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        assert self._call is not None
        with run_errors(self.spec.source.name):
            results = self._call(*(inputs[name] for name in self._inputs))
        arrays = {name: _array(found) for name, found in zip(self._outputs, results, strict=True)}
        for name, array in arrays.items():
            # Some operators hand their input's memory on, which is the request's.
            if name in self._copied or any(np.may_share_memory(array, given) for given in inputs.values()):
                arrays[name] = array.copy()
        arrays.update((name, inputs[given].copy()) for name, given in self._passed_on.items())
        return arrays

    def memory_usage(self) -> Sequence[MemoryUsage]:
        """The model's files, by the instance that opened the session: the library does not tell."""
        is_gpu = self.spec.kind is InstanceKind.GPU
        if not self._byte_size:
            return ()
        return (MemoryUsage("GPU" if is_gpu else "CPU", self.spec.device_id if is_gpu else 0, self._byte_size),)

    def close_model(self) -> None:
        self._call = None
        self._byte_size = 0
        if self._session is not None:
            session, self._session = self._session, None
            self._sessions.give_back(session)


def _platform(source: ModelSource) -> str:
    """Raises InvalidArgument for one that is not TensorFlow's."""
    platform = source.config.platform or SAVED_MODEL
    if platform not in _FILES:
        raise InvalidArgument(f"platform {platform} not supported for TensorFlow model '{source.name}'")
    return platform


def _model_path(source: ModelSource) -> Path:
    """Raises Unavailable where there is none."""
    path = source.version_directory / (source.config.default_model_filename or _FILES[_platform(source)])
    if not path.exists():
        raise Unavailable(f"unable to find '{path}' for model instance '{source.name}'")
    return path


def _read(source: ModelSource, options: TensorFlowOptions, device: str | None = None) -> ModelFile:
    path = _model_path(source)
    with load_errors(source.name, "loading the libraries of 'model_operations'"):
        for library in options.op_libraries:  # without them there is no graph with their operators
            tf.load_op_library(library)
    if _platform(source) == GRAPH_DEF:
        return read_graph_def(path, source, device)
    return read_saved_model(path, source, options)


def _incomplete(source: ModelSource) -> InvalidArgument:
    missing = "input" if not source.config.input else "output"
    told = describe_placeholders(read_graph_def(_model_path(source), source))
    return InvalidArgument(
        f"model '{source.name}': model configuration must contain at least one {missing}, none were specified. A "
        f"GraphDef does not tell which of its nodes are outputs; its inputs are {told or 'none'}"
    )


def _require_device(spec: InstanceSpec) -> None:
    if spec.kind is not InstanceKind.GPU:
        return
    found = tf.config.list_physical_devices("GPU")
    if spec.device_id >= len(found):
        built = "" if tf.test.is_built_with_cuda() else " is built without CUDA and"
        raise Unavailable(
            f"model instance '{spec.name}' has KIND_GPU and device {spec.device_id}, but the installed TensorFlow "
            f"{tf.__version__}{built} sees {len(found) or 'no'} GPU{'s' if len(found) > 1 else ''}; install "
            f"tensorflow[and-cuda] in place of tensorflow-cpu, or use KIND_CPU"
        )


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files)


def _array(found: Any) -> NDArray[Any]:
    """Scalars come as such."""
    if not isinstance(found, bytes):
        return np.asarray(found)
    array = np.empty((), np.object_)
    array[()] = found
    return array
