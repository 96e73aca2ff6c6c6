"""GPU tensors in the worker, through torch or cupy, whichever the model has imported.

The worker imports one only where the model has not, and something must be copied. Where a tensor came from does not
matter: it is held as the library's own, and whatever filled it has ended. Streams: "Python Specification for DLPack".

Not seen running on a GPU: the tests stand host memory behind the names of both libraries.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, Callable, ContextManager

from . import dlpack
from .errors import TritonModelException

_LEGACY_DEFAULT_STREAM = 1  # as DLPack counts; the libraries say 0
NO_LIBRARY = (
    "GPU tensors need torch or cupy in the model's environment, built for CUDA; here neither of them can use a GPU"
)


class Library:
    """The little that is needed of one. What is on a device is an array of its own, and so are its errors."""

    def __init__(self, module: ModuleType) -> None:
        self._module: Any = module

    def is_usable(self) -> bool:
        """Whether it can use a GPU."""
        raise NotImplementedError

    def device(self, device_id: int) -> ContextManager[Any]:
        """Makes it the running thread's current device, which all below needs."""
        raise NotImplementedError

    def stream(self) -> Any:
        """The current stream."""
        raise NotImplementedError

    def stream_number(self) -> int:
        """The current stream's."""
        raise NotImplementedError

    def adopt(self, capsule: Any, device_id: int) -> Any:
        """An array over the same memory."""
        raise NotImplementedError

    def to_host(self, array: Any) -> Any:
        """A numpy array; complete."""
        raise NotImplementedError

    def to_device(self, array: Any) -> Any:
        """A copy of a numpy array."""
        raise NotImplementedError


class Torch(Library):
    def is_usable(self) -> bool:
        # Not one for ROCm, whose devices DLPack numbers otherwise.
        return self._module.version.cuda is not None and bool(self._module.cuda.is_available())

    def device(self, device_id: int) -> ContextManager[Any]:
        found: ContextManager[Any] = self._module.cuda.device(device_id)
        return found

    def stream(self) -> Any:
        return self._module.cuda.current_stream()

    def stream_number(self) -> int:
        return int(self.stream().cuda_stream)

    def adopt(self, capsule: Any, device_id: int) -> Any:
        return self._module.utils.dlpack.from_dlpack(capsule)

    def to_host(self, array: Any) -> Any:
        return array.cpu().numpy()

    def to_device(self, array: Any) -> Any:
        return self._module.from_numpy(array).cuda()


class Cupy(Library):
    def is_usable(self) -> bool:
        return bool(self._module.cuda.is_available())

    def device(self, device_id: int) -> ContextManager[Any]:
        found: ContextManager[Any] = self._module.cuda.Device(device_id)
        return found

    def stream(self) -> Any:
        return self._module.cuda.get_current_stream()

    def stream_number(self) -> int:
        return int(self.stream().ptr)

    def adopt(self, capsule: Any, device_id: int) -> Any:
        return self._module.from_dlpack(dlpack.Capsule(capsule, (dlpack.CUDA, device_id)))

    def to_host(self, array: Any) -> Any:
        return self._module.asnumpy(array)

    def to_device(self, array: Any) -> Any:
        return self._module.asarray(array)


_LIBRARIES: dict[str, Callable[[ModuleType], Library]] = {"torch": Torch, "cupy": Cupy}


class DeviceArray:
    """Memory on a GPU, in the hands of a library."""

    __slots__ = ("_array", "_library", "device_id")

    def __init__(self, library: Library, array: Any, device_id: int) -> None:
        self._library = library
        self._array = array
        self.device_id = device_id

    def capsule(self, stream: Any) -> Any:
        """A DLPack capsule over the same memory, which may be used on that stream."""
        with self._library.device(self.device_id):
            return self._array.__dlpack__(stream=stream)

    def to_host(self) -> Any:
        """A copy as a numpy array; bfloat16 as 16-bit integers."""
        with self._library.device(self.device_id):
            return self._library.to_host(self._array)


def find_library() -> Library | None:
    """The one to use, a library that the model has imported before one that it has not."""
    for is_imported in (True, False):
        for name, kind in _LIBRARIES.items():
            if (name in sys.modules) is is_imported:
                library = _imported(name, kind)
                if library is not None:
                    return library
    return None


def _imported(name: str, kind: Callable[[ModuleType], Library]) -> Library | None:
    try:
        library = kind(importlib.import_module(name))
        return library if library.is_usable() else None
    except Exception:  # not there, or not fit for this machine
        return None


def _library() -> Library:
    library = find_library()
    if library is None:
        raise TritonModelException(NO_LIBRARY)
    return library


def adopt(source: Any) -> tuple[DeviceArray, dlpack.Layout]:
    """Hold the memory of a capsule on a GPU, or of an object that makes one; waits until what fills it has ended.

    Raises TritonModelException, or what the source raises.
    """
    device_id = dlpack.device_of(source)[1]
    library = _library()
    with library.device(device_id):
        capsule = source
        if not dlpack.is_capsule(source):
            capsule = source.__dlpack__(stream=library.stream_number() or _LEGACY_DEFAULT_STREAM)
        layout = dlpack.layout_of(capsule)
        if layout.is_bfloat:
            dlpack.relabel(capsule, dlpack.SIGNED)  # not every library has bfloat16
        array = library.adopt(capsule, device_id)
        library.stream().synchronize()
    return DeviceArray(library, array, device_id), layout


def to_host(memory: DeviceArray, what: str) -> Any:
    """A copy as a numpy array; bfloat16 as 16-bit integers. Raises TritonModelException."""
    try:
        return memory.to_host()
    except Exception as error:
        raise TritonModelException(
            f"{what} cannot be copied from GPU {memory.device_id} to the host: {type(error).__name__}: {error}"
        ) from error


def to_device(array: Any, device_id: int, what: str) -> DeviceArray:
    """A copy of a numpy array, complete. Raises TritonModelException."""
    library = _library()
    try:
        with library.device(device_id):
            copy = library.to_device(array)
            library.stream().synchronize()
    except Exception as error:
        raise TritonModelException(
            f"{what} cannot be copied to GPU {device_id}: {type(error).__name__}: {error}"
        ) from error
    return DeviceArray(library, copy, device_id)
