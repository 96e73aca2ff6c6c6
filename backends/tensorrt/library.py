"""TensorRT's API: runtimes, engines and execution contexts. Not seen running on a GPU.

Everything that this server asks of the package tensorrt (10 or 11) is asked here. Functions answer False or None where
they fail and tell their logger why, so the logger remembers the last word of each thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tensorrt as trt
from numpy.typing import NDArray

from backends.devices.stream import DeviceStream
from backends.out_of_memory import is_out_of_memory
from backends.tensorrt.description import EngineDescription, EngineTensor, Range
from backends.tensorrt.options import TensorRTOptions
from protocol.datatypes import DataType
from protocol.errors import Internal, InvalidArgument, Overloaded, ServerError
from protocol.tensors.device_tensor import DeviceBuffer
from repository.model_config import Dims

logger = logging.getLogger("trioton.tensorrt")

_DATA_TYPES = {
    trt.DataType.FLOAT: DataType.FP32,
    trt.DataType.HALF: DataType.FP16,
    trt.DataType.BF16: DataType.BF16,
    trt.DataType.INT8: DataType.INT8,
    trt.DataType.INT32: DataType.INT32,
    trt.DataType.INT64: DataType.INT64,
    trt.DataType.BOOL: DataType.BOOL,
    trt.DataType.UINT8: DataType.UINT8,
}


class Log(trt.ILogger):  # type: ignore[misc]  # the package ships no types
    """TensorRT's messages in the server's log."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self._said = threading.local()
        severity = trt.ILogger.Severity
        self._errors = (severity.INTERNAL_ERROR, severity.ERROR)
        self._levels = {severity.WARNING: logging.WARNING, severity.INFO: logging.DEBUG, severity.VERBOSE: 0}

    def log(self, severity: Any, msg: str) -> None:
        """Called by TensorRT, from any thread."""
        if severity in self._errors:
            self._said.last = msg
            logger.error("%s", msg)
        elif level := self._levels.get(severity, 0):
            logger.log(level, "%s", msg)

    def last_error(self) -> str:
        """What this thread's last failure was, once."""
        last = str(getattr(self._said, "last", "")) or "TensorRT gives no reason"
        self._said.last = ""
        return last


@cache
def log() -> Log:
    """The one of this process: TensorRT keeps the first that it sees."""
    return Log()


@cache
def _load_plugins(paths: tuple[str, ...]) -> None:
    """TensorRT's own, and libraries of others; one that cannot be loaded is told, and missed where it is needed."""
    trt.init_libnvinfer_plugins(log(), "")
    for path in paths:
        try:
            handle = trt.get_plugin_registry().load_library(path)
        except Exception as error:  # whatever the library of a stranger does
            logger.error("TensorRT plugin library '%s' cannot be loaded: %s", path, error)
            continue
        if handle is None:
            logger.error("TensorRT plugin library '%s' cannot be loaded: %s", path, log().last_error())


def read_engine(path: Path, options: TensorRTOptions, *, dla_core: int | None, model: str) -> Any:
    """The `tensorrt.ICudaEngine` of a plan file, on the thread's GPU.

    Raises:
        Internal: TensorRT's own words: there is no GPU, or the file is no engine, or one for another GPU or release.
        InvalidArgument: the machine has no such DLA core.
    """
    _load_plugins(options.plugins)
    about = f"(model '{model}', TensorRT {trt.__version__})"
    try:
        runtime = trt.Runtime(log())
    except Exception as error:
        raise Internal(f"unable to create TensorRT runtime: {_told(error)} {about}") from error
    if dla_core is not None:
        if dla_core >= runtime.num_DLA_cores:
            raise InvalidArgument(
                f"unable to create TensorRT runtime with DLA Core ID: {dla_core}, available number of DLA cores: "
                f"{runtime.num_DLA_cores} {about}"
            )
        runtime.DLA_core = dla_core
    if options.is_version_compatible:
        runtime.engine_host_code_allowed = True
    try:
        engine = runtime.deserialize_cuda_engine(path.read_bytes())
    except Exception as error:
        raise Internal(f"unable to create TensorRT engine: {_told(error)} {about}") from error
    if engine is None:
        raise Internal(f"unable to create TensorRT engine: {log().last_error()} {about}")
    return engine


def _told(error: Exception) -> str:
    last = log().last_error()
    return f"{error}: {last}" if str(error) else last


def describe(engine: Any) -> EngineDescription:
    """What an `ICudaEngine` says of itself."""
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    profiles = range(engine.num_optimization_profiles)
    return EngineDescription(tuple(_tensor(engine, name, profiles) for name in names), len(profiles))


def _tensor(engine: Any, name: str, profiles: Sequence[int]) -> EngineTensor:
    is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
    is_shape_tensor = bool(engine.is_shape_inference_io(name))
    ranges: tuple[Range, ...] = ()
    if is_input and is_shape_tensor:
        # In this order, whatever names the package gives the two.
        found = [engine.get_tensor_profile_values(profile, name) for profile in profiles]
        ranges = tuple(Range(*map(tuple, bounds)) for bounds in found if len(bounds) == 3)
    elif is_input:
        ranges = tuple(Range(*map(tuple, engine.get_tensor_profile_shape(name, profile))) for profile in profiles)
    return EngineTensor(
        name=name,
        data_type=_DATA_TYPES.get(engine.get_tensor_dtype(name), DataType.INVALID),
        shape=tuple(engine.get_tensor_shape(name)),
        is_input=is_input,
        is_shape_tensor=is_shape_tensor,
        format=engine.get_tensor_format(name).name,
        ranges=ranges if len(ranges) == len(profiles) else (),
    )


def weights_byte_size(engine: Any) -> int:
    """Bytes of all weights on the GPU; 0 where the release does not tell."""
    stat = getattr(trt, "EngineStat", None)
    return 0 if stat is None else max(int(engine.get_engine_stat(stat.TOTAL_WEIGHTS_SIZE)), 0)


class OutputMemory(trt.IOutputAllocator):  # type: ignore[misc]  # the package ships no types
    """Memory for an output whose size depends on the data: TensorRT asks for it while it runs. It only grows, and is
    the next run's too. `error` is why there was none."""

    def __init__(self, stream: DeviceStream) -> None:
        trt.IOutputAllocator.__init__(self)
        self._stream = stream
        self.memory: DeviceBuffer | None = None
        self.shape: Dims = ()
        self.error: ServerError | None = None

    def reallocate_output(self, tensor_name: str, memory: int | None, size: int, alignment: int) -> int:
        if self.memory is None or size > self.memory.byte_size:
            try:
                self.memory = self._stream.allocate(max(size, 1))
            except ServerError as error:  # TensorRT fails the run then
                self.error = error
                return 0
        return self.memory.address

    def reallocate_output_async(
        self, tensor_name: str, memory: int | None, size: int, alignment: int, stream: int
    ) -> int:
        return self.reallocate_output(tensor_name, memory, size, alignment)

    def notify_shape(self, tensor_name: str, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)


class Context:
    """An `IExecutionContext` with one profile, for the instance's thread alone. What TensorRT refuses is Internal, or
    Overloaded where it says that there is no memory left.

    `memory` is what it computes in, of at least `context_byte_size`; without it TensorRT allocates by the strategy.
    """

    def __init__(
        self,
        engine: Any,
        profile: int,
        stream: DeviceStream,
        *,
        strategy: str,
        instance: str,
        memory: DeviceBuffer | None = None,
    ) -> None:
        self._instance = instance
        strategies = trt.ExecutionContextAllocationStrategy
        chosen = getattr(strategies, strategy) if memory is None else strategies.USER_MANAGED
        made = engine.create_execution_context(chosen)
        if made is None:
            raise _refusal(f"unable to create TensorRT context for {instance}: {log().last_error()}")
        self._context = made
        self._allocators: dict[str, OutputMemory] = {}
        self._host_arrays: dict[str, NDArray[Any]] = {}  # what TensorRT has the addresses of
        if memory is not None:
            made.set_device_memory(memory.address, context_byte_size(engine))
        self._must(made.set_optimization_profile_async(profile, stream.number), f"select profile {profile}")
        stream.synchronize()

    def set_shapes(self, shapes: Mapping[str, Dims]) -> None:
        for name, shape in shapes.items():
            self._must(self._context.set_input_shape(name, tuple(shape)), f"set the shape {list(shape)} of '{name}'")

    def bind(self, name: str, address: int) -> None:
        self._must(self._context.set_tensor_address(name, address), f"set the address of '{name}'")

    def bind_host(self, name: str, array: NDArray[Any]) -> None:
        """A shape tensor's values; the array is kept until the next one is bound."""
        self.bind(name, array.ctypes.data)
        self._host_arrays[name] = array

    def bind_allocator(self, name: str, stream: DeviceStream) -> None:
        """For an output whose shape is only known when it has been computed."""
        if name not in self._allocators:
            made = OutputMemory(stream)
            self._must(self._context.set_output_allocator(name, made), f"set the allocator of '{name}'")
            self._allocators[name] = made

    def allocated(self, name: str) -> tuple[DeviceBuffer, Dims]:
        """What such an output was written to, until the next run, and its shape; after the run was waited for."""
        found = self._allocators[name]
        assert found.memory is not None
        return found.memory, found.shape

    def output_shape(self, name: str) -> Dims:
        """For the inputs that were set; -1 where it depends on the data."""
        return tuple(self._context.get_tensor_shape(name))

    def infer_shapes(self) -> None:
        """After all shapes and the values of shape tensors are set.

        Raises:
            InvalidArgument: they do not fit each other.
        """
        try:
            missing = self._context.infer_shapes()
        except RuntimeError as error:
            raise InvalidArgument(
                f"the shapes of the inputs do not fit for {self._instance}: {_told(error)}"
            ) from error
        if missing:
            raise Internal(f"the shapes of {', '.join(missing)} are not known for {self._instance}")

    def enqueue(self, stream: DeviceStream) -> None:
        """Raises Overloaded where there is no memory left."""
        for allocator in self._allocators.values():
            allocator.error = None
        if self._context.execute_async_v3(stream.number):
            return
        said = f"unable to enqueue for inference {self._instance}: {log().last_error()}"
        raise next((each.error for each in self._allocators.values() if each.error is not None), _refusal(said))

    def _must(self, is_done: bool, what: str) -> None:
        if not is_done:
            raise Internal(f"unable to {what} for {self._instance}: {log().last_error()}")


def _refusal(said: str) -> ServerError:
    """TensorRT has no exceptions: only its words tell that the device is full."""
    return Overloaded(said) if is_out_of_memory(RuntimeError(said)) else Internal(said)


def context_byte_size(engine: Any) -> int:
    """What a context computes in, whatever its profile."""
    return int(engine.device_memory_size_v2)


def host_values(shape: Dims, data_type: DataType) -> NDArray[Any]:
    """Room for the values of a shape tensor that the engine writes."""
    return np.zeros(shape, dtype=data_type.dtype)
