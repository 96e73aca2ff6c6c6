"""Where an instance computes, and how tensors get there and back.

On a GPU each instance has a stream of its own, and copies go through pinned host memory, so that those of one instance
run beside the work of others. The GPU's part is written by the library's documentation and has not been seen running.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray

from backends.interface import InstanceSpec
from backends.pytorch.values import host_array, host_tensor
from protocol.errors import Unavailable
from repository.model_config import InstanceKind


class Device:
    """The host. `map_location` is what the library's loaders want: None keeps tensors where the file has them."""

    map_location: torch.device | None = torch.device("cpu")
    compiled_index = -1  # what the loader of compiled models takes for a device

    def tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return host_tensor(array)

    def arrays(self, tensors: list[torch.Tensor]) -> list[NDArray[Any]]:
        """Those of results, in host memory."""
        return [host_array(tensor.cpu()) for tensor in tensors]

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Around a run, in the instance's thread."""
        yield

    def clean(self) -> None:
        """Give memory that the library keeps for later back to the device."""


class ModelsOwnDevice(Device):
    """KIND_MODEL: the model has its parts where its file puts them, and takes its inputs on the host."""

    map_location = None

    def clean(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


class CudaDevice(Device):
    def __init__(self, index: int) -> None:
        self.map_location = self._device = torch.device("cuda", index)
        self.compiled_index = index
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return host_tensor(array).pin_memory().to(self._device, non_blocking=True)

    def arrays(self, tensors: list[torch.Tensor]) -> list[NDArray[Any]]:
        staged = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in tensors]
        for stage, tensor in zip(staged, tensors, strict=True):
            stage.copy_(tensor, non_blocking=True)
        self._stream.synchronize()
        return [host_array(stage) for stage in staged]

    @contextmanager
    def computing(self) -> Iterator[None]:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            yield

    def clean(self) -> None:
        torch.cuda.empty_cache()


def device_of(spec: InstanceSpec) -> Device:
    """Raises Unavailable where an instance of KIND_GPU has no GPU that the library can use."""
    if spec.kind is InstanceKind.GPU:
        if not torch.cuda.is_available():
            built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built without CUDA"
            raise Unavailable(
                f"model instance '{spec.name}' has KIND_GPU, but the installed torch {torch.__version__} {built} and "
                "sees no GPU; install a torch for this machine's CUDA, or use KIND_CPU"
            )
        return CudaDevice(spec.device_id)
    return ModelsOwnDevice() if spec.kind is InstanceKind.MODEL else Device()
