"""Engine files: deserialised once per instance, or shared by the instances on a device.

An engine without open shapes serves any number of contexts, so the instances of one load that are on the same device
(and DLA core) have it in common, with its weights. Others are read for each instance, as in Triton. Reading is done by
one instance at a time. Blocks; imports TensorRT.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.devices.machine import compute_capabilities
from backends.devices.stream import DeviceStream
from backends.interface import ModelSource
from backends.tensorrt.description import EngineDescription
from backends.tensorrt.library import describe, read_engine, weights_byte_size
from backends.tensorrt.options import TensorRTOptions
from protocol.errors import Internal, InvalidArgument, Unavailable
from repository.model_config import InstanceKind

MODEL_FILE = "model.plan"


@dataclass(frozen=True, slots=True, eq=False)
class LoadedEngine:
    """`weights` are the bytes on the GPU that this engine has added."""

    engine: Any
    description: EngineDescription
    weights: int = 0


class Engines:
    """The engines of one load on one device. `acquire` and `release` may be called by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: LoadedEngine | None = None
        self._users = 0

    def acquire(self, path: Path, options: TensorRTOptions, *, dla_core: int | None, model: str) -> LoadedEngine:
        """An engine for one more instance, on the thread's device. Raises as `library.read_engine`."""
        with self._lock:
            if self._shared is not None:
                self._users += 1
                return LoadedEngine(self._shared.engine, self._shared.description)
            engine = read_engine(path, options, dla_core=dla_core, model=model)
            loaded = LoadedEngine(engine, describe(engine), weights_byte_size(engine))
            if not loaded.description.is_dynamic:
                self._shared, self._users = loaded, 1
            return loaded

    def release(self, loaded: LoadedEngine) -> None:
        """The instance needs it no longer; with the last one that shares it, it is dropped here."""
        with self._lock:
            if self._shared is not None and self._shared.engine is loaded.engine:
                self._users -= 1
                if not self._users:
                    self._shared = None


def open_stream(source: ModelSource, options: TensorRTOptions, device_id: int) -> DeviceStream:
    """A stream of the GPU, to be made current around all that TensorRT does.

    Raises:
        Unavailable: there is no such GPU, no driver that works, or no cupy.
    """
    try:
        return source.devices.stream(device_id, source.config, priority=options.stream_priority)
    except Unavailable as error:
        raise Unavailable(f"model '{source.name}' needs the NVIDIA GPU {device_id}: {error.message}") from error


def engines_of(source: ModelSource, device_id: int, dla_core: int | None) -> Engines:
    """What the instances of this load have in common on a device."""
    found = source.shared.setdefault(f"tensorrt {device_id} {dla_core}", Engines())
    assert isinstance(found, Engines)
    return found


def plan_path(source: ModelSource) -> Path:
    """The plan file.

    Raises:
        Unavailable: there is none.
    """
    path = source.version_directory / (source.config.default_model_filename or MODEL_FILE)
    if not path.is_file():
        raise Unavailable(f"unable to find '{path}' for model instance '{source.name}'")
    return path


def describe_plan(source: ModelSource, options: TensorRTOptions, device_id: int) -> EngineDescription:
    """What the engine of a plan says of itself, for a configuration to be completed from, or compared with. The engine
    is dropped again. May be called in any thread.

    Raises:
        InvalidArgument: it cannot be read.
        Unavailable: there is no such file, or no such GPU.
    """
    capability = dict(enumerate(compute_capabilities())).get(device_id, "")
    path = plan_path(source.for_device(InstanceKind.GPU, capability))
    with open_stream(source, options, device_id).current():
        try:
            return describe(read_engine(path, options, dla_core=None, model=source.name))
        except Internal as error:
            raise InvalidArgument(
                f"unable to load plan file to auto complete config: {path}: {error.message}"
            ) from error
