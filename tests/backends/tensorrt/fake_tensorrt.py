"""In the place of the package tensorrt where there is no GPU: those of its documented calls that the backend makes.

It computes in the memory, and on the streams, of `tests.fake_cupy`, and only for the device that is the thread's.

A plan is JSON here: the tensors, as an engine describes them, and the name of one of `PROGRAMS`, which computes. Names
and arguments are held against the real package by `test_library`, where that is installed.
"""

from __future__ import annotations

import ctypes
import enum
import json
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests.fake_cupy import FakeRuntime

Arrays = dict[str, NDArray[Any]]


class DataType(enum.Enum):
    FLOAT = np.dtype(np.float32)
    HALF = np.dtype(np.float16)
    BF16 = np.dtype(ml_dtypes.bfloat16)
    INT8 = np.dtype(np.int8)
    INT32 = np.dtype(np.int32)
    INT64 = np.dtype(np.int64)
    BOOL = np.dtype(np.bool_)
    UINT8 = np.dtype(np.uint8)
    FP8 = np.dtype(ml_dtypes.float8_e4m3fn)


class TensorIOMode(enum.Enum):
    NONE = 0
    INPUT = 1
    OUTPUT = 2


class TensorFormat(enum.Enum):
    LINEAR = 0
    CHW32 = 5


class ExecutionContextAllocationStrategy(enum.Enum):
    STATIC = 0
    ON_PROFILE_CHANGE = 1
    USER_MANAGED = 2


class EngineStat(enum.Enum):
    TOTAL_WEIGHTS_SIZE = 0


class ILogger:
    class Severity(enum.Enum):
        INTERNAL_ERROR = 0
        ERROR = 1
        WARNING = 2
        INFO = 3
        VERBOSE = 4

    def log(self, severity: Severity, msg: str) -> None: ...


class IOutputAllocator:
    def reallocate_output_async(
        self, tensor_name: str, memory: int | None, size: int, alignment: int, stream: int
    ) -> int:
        raise NotImplementedError

    def notify_shape(self, tensor_name: str, shape: Sequence[int]) -> None: ...


def add_sub(inputs: Arrays) -> Arrays:
    a, b = inputs["INPUT0"], inputs["INPUT1"]
    return {"OUTPUT0": a + b, "OUTPUT1": a - b}


def identity(inputs: Arrays) -> Arrays:
    return {"Y": inputs["X"].copy()}


def positives(inputs: Arrays) -> Arrays:
    """The size of the result depends on the data."""
    return {"Y": inputs["X"][inputs["X"] > 0]}


def resized(inputs: Arrays) -> Arrays:
    """X repeated in its last dimension to the size that the shape tensor says."""
    wanted = tuple(inputs["SHAPE"].tolist())
    return {"Y": np.resize(inputs["X"][:, :1], wanted), "NEXT": np.array([wanted[0], wanted[1] + 1], np.int64)}


def step(inputs: Arrays) -> Arrays:
    """A sequence: the sum since its start."""
    total = inputs["X"] + np.where(inputs["START"] > 0, 0, inputs["STATE"])
    return {"Y": total.astype(np.float32), "NEXT": total.astype(np.float32)}


PROGRAMS: Mapping[str, Callable[[Arrays], Arrays]] = {
    each.__name__: each for each in (add_sub, identity, positives, resized, step)
}


def tensor(
    name: str,
    shape: Sequence[int],
    *profiles: Sequence[Sequence[int]],
    dtype: str = "FLOAT",
    output: bool = False,
    shape_tensor: bool = False,
    format: str = "LINEAR",
) -> dict[str, Any]:
    """One tensor of a plan; `profiles` are (minimum, optimum, maximum)."""
    ranges = [list(map(list, profile)) for profile in profiles]
    mode = "OUTPUT" if output else "INPUT"
    return {
        "name": name, "shape": list(shape), "profiles": ranges, "dtype": dtype, "mode": mode,
        "shape_tensor": shape_tensor, "format": format,
    }  # fmt: skip


def plan(program: str, *tensors: dict[str, Any], profiles: int = 1) -> bytes:
    return json.dumps({"program": program, "tensors": tensors, "profiles": profiles}).encode()


def module(gpu: FakeRuntime) -> ModuleType:
    """`tensorrt` over such a GPU. What it was asked for is in its `seen`."""
    made = ModuleType("tensorrt")
    seen: dict[str, Any] = {"runtimes": [], "engines": [], "contexts": [], "plugins": []}

    def on_gpu(address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        gpu.check_kept(address, int(np.prod(shape)) * dtype.itemsize)
        return _at_host(address, shape, dtype)

    class Runtime:
        def __init__(self, logger: ILogger) -> None:
            if not gpu.device_count:
                logger.log(ILogger.Severity.ERROR, "CUDA initialization failure with error: 35")
                raise TypeError("pybind11::init(): factory function returned nullptr")
            self.logger = logger
            self.num_DLA_cores = seen.get("dla_cores", 0)
            self.DLA_core = -1
            self.engine_host_code_allowed = False
            seen["runtimes"].append(self)

        def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
            if not serialized_engine.startswith(b"{"):
                self.logger.log(ILogger.Severity.ERROR, "Serialization assertion stdMagicTag failed: magic tag")
                return None
            return ICudaEngine(self.logger, json.loads(serialized_engine))

    class ICudaEngine:
        device_memory_size_v2 = 512
        num_io_tensors: int
        num_optimization_profiles: int

        def __init__(self, logger: ILogger, told: dict[str, Any]) -> None:
            self.logger = logger
            self.device = gpu.current_device
            assert self.device is not None, "no device is the thread's"
            self.told: dict[str, dict[str, Any]] = {each["name"]: each for each in told["tensors"]}
            self.program = PROGRAMS[told["program"]]
            self.num_io_tensors = len(self.told)
            self.num_optimization_profiles = told["profiles"]
            seen["engines"].append(self)

        def get_tensor_name(self, index: int) -> str:
            return list(self.told)[index]

        def get_tensor_mode(self, name: str) -> TensorIOMode:
            return TensorIOMode[self.told[name]["mode"]]

        def get_tensor_dtype(self, name: str) -> DataType:
            return DataType[self.told[name]["dtype"]]

        def get_tensor_shape(self, name: str) -> list[int]:
            return list(self.told[name]["shape"])

        def get_tensor_format(self, name: str) -> TensorFormat:
            return TensorFormat[self.told[name]["format"]]

        def is_shape_inference_io(self, name: str) -> bool:
            return bool(self.told[name]["shape_tensor"])

        def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[list[int]]:
            assert not self.told[name]["shape_tensor"]
            return list(self.told[name]["profiles"][profile_index])

        def get_tensor_profile_values(self, first: int, second: str) -> list[list[int]]:
            assert isinstance(first, int)  # the real one takes the profile first, and calls it `name`
            return list(self.told[second]["profiles"][first])

        def get_engine_stat(self, stat: EngineStat) -> int:
            return 4096

        def create_execution_context(
            self, strategy: ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy.STATIC
        ) -> IExecutionContext | None:
            assert gpu.current_device == self.device
            if seen.get("refuses_contexts"):
                self.logger.log(ILogger.Severity.ERROR, "Error Code 2: OutOfMemory (Requested size was 512 bytes.)")
                return None
            return IExecutionContext(self, strategy)

    class IExecutionContext:
        def __init__(self, engine: ICudaEngine, strategy: ExecutionContextAllocationStrategy) -> None:
            self.engine = engine
            self.strategy = strategy
            self.profile = 0
            self.memory = 0
            self.runs = 0
            self.inferred = 0
            self._shapes: dict[str, tuple[int, ...]] = {}
            self._addresses: dict[str, int] = {}
            self._allocators: dict[str, IOutputAllocator] = {}
            for name, told in engine.told.items():
                if told["mode"] == "INPUT" and (told["shape_tensor"] or -1 not in told["shape"]):
                    self._shapes[name] = tuple(told["shape"])
            seen["contexts"].append(self)

        def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
            self.profile = profile_index
            return profile_index < self.engine.num_optimization_profiles

        def set_device_memory(self, memory: int, size: int) -> None:
            assert size >= self.engine.device_memory_size_v2
            gpu.check_kept(memory, size)
            self.memory = memory

        def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
            told = self.engine.told[name]
            assert not told["shape_tensor"]
            least, _, most = told["profiles"][self.profile]
            fits = len(shape) == len(told["shape"]) and all(
                a <= b <= c for a, b, c in zip(least, shape, most, strict=True)
            )
            if fits:
                self._shapes[name] = tuple(shape)
            else:
                self.engine.logger.log(ILogger.Severity.ERROR, f"{name}: {shape} is not within the profile")
            return fits

        def set_tensor_address(self, name: str, memory: int) -> bool:
            if not self.engine.told[name]["shape_tensor"]:
                assert memory % 256 == 0
                gpu.check_kept(memory, 1)
            self._addresses[name] = memory
            return True

        def set_output_allocator(self, name: str, output_allocator: IOutputAllocator) -> bool:
            self._allocators[name] = output_allocator
            return True

        def infer_shapes(self) -> list[str]:
            self.inferred += 1
            sizes = {shape[:1] for name, shape in self._shapes.items() if not self.engine.told[name]["shape_tensor"]}
            if len(sizes) > 1:
                raise RuntimeError("inconsistent dimensions")
            return [
                name for name, told in self.engine.told.items() if told["mode"] == "INPUT" and name not in self._shapes
            ]

        def get_tensor_shape(self, name: str) -> list[int]:
            if self.engine.program is positives:
                return [-1]
            zeros = {each: self._input(each) for each in self._shapes}
            return list(self.engine.program(zeros)[name].shape)

        def execute_async_v3(self, stream_handle: int) -> bool:
            stream = gpu.stream(stream_handle)
            assert gpu.current_device == self.engine.device == stream.device
            if self.memory:
                gpu.check_kept(self.memory, self.engine.device_memory_size_v2)
            if self.strategy is ExecutionContextAllocationStrategy.USER_MANAGED and not self.memory:
                self.engine.logger.log(ILogger.Severity.ERROR, "no device memory was set")
                return False
            if set(self.engine.told) - self._addresses.keys() - self._allocators.keys():
                self.engine.logger.log(ILogger.Severity.ERROR, "a tensor has no address")
                return False
            self.runs += 1
            shapes, addresses = dict(self._shapes), dict(self._addresses)
            for name, allocator in self._allocators.items():
                bound = sum(int(np.prod(shape)) for shape in shapes.values()) * 4
                addresses[name] = allocator.reallocate_output_async(name, None, bound, 256, stream_handle)
                if not addresses[name]:
                    self.engine.logger.log(ILogger.Severity.ERROR, "an output has no memory")
                    return False
            hosts = {name: self._host_values(name) for name in shapes if self.engine.told[name]["shape_tensor"]}

            def work() -> None:
                inputs = {
                    name: hosts[name] if name in hosts else on_gpu(addresses[name], shape, self._dtype(name)).copy()
                    for name, shape in shapes.items()
                }
                for name, array in self.engine.program(inputs).items():
                    if self.engine.told[name]["shape_tensor"]:
                        _at_host(addresses[name], array.shape, array.dtype)[...] = array
                        continue
                    on_gpu(addresses[name], array.shape, array.dtype)[...] = array
                    if name in self._allocators:
                        self._allocators[name].notify_shape(name, list(array.shape))

            stream.add(work)
            return True

        def _dtype(self, name: str) -> np.dtype[Any]:
            found: np.dtype[Any] = self.engine.get_tensor_dtype(name).value
            return found

        def _input(self, name: str) -> NDArray[Any]:
            if self.engine.told[name]["shape_tensor"]:
                return self._host_values(name)
            return np.zeros(self._shapes[name], self._dtype(name))

        def _host_values(self, name: str) -> NDArray[Any]:
            """What is at the address now."""
            return _at_host(self._addresses[name], tuple(self.engine.told[name]["shape"]), self._dtype(name)).copy()

    class Registry:
        def load_library(self, plugin_path: str) -> object | None:
            seen["plugins"].append(plugin_path)
            if "missing" in plugin_path:
                raise RuntimeError(f"{plugin_path}: cannot open shared object file")
            return None if "refused" in plugin_path else object()

    contents: dict[str, Any] = {
        "__version__": "11.4.0.106",
        "seen": seen,
        "init_libnvinfer_plugins": lambda logger, namespace: True,
        "get_plugin_registry": Registry,
    }
    for each in (DataType, TensorIOMode, TensorFormat, ExecutionContextAllocationStrategy, EngineStat, ILogger):
        contents[each.__name__] = each
    for part in (IOutputAllocator, Runtime, ICudaEngine, IExecutionContext):
        contents[part.__name__] = part
    vars(made).update(contents)
    return made


def _at_host(address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    size = int(np.prod(shape)) * dtype.itemsize
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address)).view(dtype).reshape(shape)
