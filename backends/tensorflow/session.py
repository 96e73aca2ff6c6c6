"""Sessions: a graph with its variables, called by the instances."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from backends.interface import InstanceSpec, ModelSource
from backends.tensorflow.errors import load_errors
from backends.tensorflow.graph_def import GraphDefFile
from backends.tensorflow.library import v1
from backends.tensorflow.options import TensorFlowOptions
from backends.tensorflow.saved_model import SavedModelFile
from protocol.errors import InvalidArgument
from repository.model_config import InstanceKind

# Arrays in the order of the inputs to arrays (or scalars) in the order of the outputs.
Call: TypeAlias = Callable[..., Sequence[Any]]
ModelFile: TypeAlias = SavedModelFile | GraphDefFile


class ModelSession:
    """A session with one model in it, shared by its `holders`. Calls may be made by several threads at once."""

    def __init__(self, spec: InstanceSpec, options: TensorFlowOptions, file: ModelFile) -> None:
        source = spec.source
        self.holders = 0
        self.tensors = file.tensors
        self._graph = file.graph
        with load_errors(source.name, "making a session"):
            self._session = v1.Session(graph=self._graph, config=session_config(spec, options))
        try:
            file.load_into(self._session, source, device_of(spec))
            self._run_init_ops(source, options)
        except BaseException:
            self._session.close()
            raise

    def call(self, inputs: Sequence[str], outputs: Sequence[str], *, in_callers_thread: bool) -> Call:
        """What runs the graph from these tensors to those; with `in_callers_thread` all operators run there, one after
        the other."""
        from tensorflow.core.protobuf import config_pb2

        wanted = config_pb2.CallableOptions()
        wanted.feed.extend(inputs)
        wanted.fetch.extend(outputs)
        if in_callers_thread:
            wanted.run_options.inter_op_thread_pool = -1
        # The public `make_callable` takes ten times as long for each call, in Python.
        made: Call = self._session._make_callable_from_options(wanted)
        return made

    def is_changed_in_place(self, tensor: str) -> bool:
        """Whether it is a variable of the old kind, whose memory the model writes to again."""
        return bool(self._graph.get_tensor_by_name(tensor).dtype._is_ref_dtype)

    def close(self) -> None:
        self._session.close()

    def _run_init_ops(self, source: ModelSource, options: TensorFlowOptions) -> None:
        if not options.init_ops_file:
            return
        names = _read_init_ops(source, options.init_ops_file)
        with load_errors(source.name, f"running the operations of '{options.init_ops_file}'"):
            self._session.run([self._graph.get_operation_by_name(name) for name in names])


class SharedSessions:
    """The sessions of one load on one device, each for so many instances."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: list[ModelSession] = []

    def take(self, make: Callable[[], ModelSession], share_count: int) -> ModelSession:
        """One that has room, or a new one; the others wait meanwhile."""
        with self._lock:
            found = next((each for each in self._sessions if each.holders < share_count), None)
            if found is None:
                found = make()
                self._sessions.append(found)
            found.holders += 1
            return found

    def give_back(self, session: ModelSession) -> None:
        """The last one closes it."""
        with self._lock:
            session.holders -= 1
            if session.holders:
                return
            self._sessions.remove(session)
        session.close()


def device_of(spec: InstanceSpec) -> str | None:
    """Where all operators go; None where the model has its own places."""
    if spec.kind is InstanceKind.MODEL:
        return None
    return f"/device:GPU:{spec.device_id}" if spec.kind is InstanceKind.GPU else "/device:CPU:0"


def session_config(spec: InstanceSpec, options: TensorFlowOptions) -> Any:
    config = v1.ConfigProto(
        intra_op_parallelism_threads=options.intra_op_threads,
        inter_op_parallelism_threads=max(options.inter_op_threads, 0),
        use_per_session_threads=options.has_own_threads,
        allow_soft_placement=options.places_softly,
    )
    if spec.kind is InstanceKind.CPU:
        config.device_count["GPU"] = 0  # else a session takes memory of each
    elif options.gpu_memory_fraction:
        config.gpu_options.per_process_gpu_memory_fraction = options.gpu_memory_fraction
    else:
        config.gpu_options.allow_growth = True
    if options.graph_level is not None:
        levels = v1.OptimizerOptions
        level = levels.ON_2 if options.graph_level > 1 else levels.ON_1 if options.graph_level == 1 else levels.OFF
        config.graph_options.optimizer_options.global_jit_level = level
    if options.has_mixed_precision and spec.kind is not InstanceKind.CPU:
        rewriting = config.graph_options.rewrite_options
        rewriting.auto_mixed_precision = type(rewriting).ON
    return config


def _read_init_ops(source: ModelSource, filename: str) -> list[str]:
    """Raises InvalidArgument where the file is missing or is no JSON of the form `{"init_ops": ["name"]}`."""
    place = f"model '{source.name}', parameter 'TF_INIT_OPS_FILE'"
    paths = [folder / filename for folder in (source.version_directory, source.model_directory)]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise InvalidArgument(f"{place}: there is no file '{paths[0]}', nor '{paths[1]}'")
    try:
        found = json.loads(path.read_text())
        names = found["init_ops"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"got {names!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(
            f'{place}: expected \'{path}\' to hold {{"init_ops": ["<operation>", …]}} ({error!r})'
        ) from None
    return names
