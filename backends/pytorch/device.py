"""Torch device of an instance, and tensor transfers to and from it.

On a GPU each instance has a stream of its own (`backends.devices.stream`) over the library's memory. The GPU's part is
tested on the host, which stands for it, and has not been seen running.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from backends.devices.stream import DeviceStream
from backends.interface import InstanceSpec
from backends.pytorch.torch_runtime import TorchRuntime
from backends.pytorch.values import DATA_TYPES, host_array, host_tensor, plain_tensor
from protocol.errors import Internal, Unavailable
from protocol.tensors.device_tensor import DeviceBuffer, device_tensor
from repository.model_config import InstanceKind


class Device:
    """The host. `map_location` is what the library's loaders want: None keeps tensors where the file has them. `stream`
    is there where inputs come on a device."""

    map_location: torch.device | None = torch.device("cpu")
    compiled_index = -1  # what the loader of compiled models takes for a device
    stream: DeviceStream | None = None

    def tensor(self, value: Any) -> torch.Tensor:
        return host_tensor(value)

    def results(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """What the backend answers with."""
        return {name: host_array(tensor.cpu()) for name, tensor in tensors.items()}

    def synchronize(self) -> None:
        """Wait for what the run has enqueued: an error of the device is that of this run."""

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


class StreamDevice(Device):
    """A device of its own memory. Inputs are device tensors, and so are results, complete when `stream` was waited
    for."""

    def __init__(self, device: torch.device, spec: InstanceSpec) -> None:
        self.map_location = self._device = device
        self.compiled_index = -1 if device.index is None else device.index
        runtime = TorchRuntime(device)
        self.stream: DeviceStream = spec.source.devices.stream(self.compiled_index, spec.config, runtime=runtime)

    def tensor(self, value: Any) -> torch.Tensor:
        """Over the same memory, which may be others' too: models that write to their inputs are not for GPUs."""
        return from_dlpack(value.__dlpack__())

    def results(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        return {name: self._result(name, tensor) for name, tensor in tensors.items()}

    def _result(self, name: str, tensor: torch.Tensor) -> Any:
        if tensor.device != self._device:  # where a model has put it, complete
            return host_array(tensor.cpu())
        datatype = DATA_TYPES.get(tensor.dtype)
        if datatype is None:
            raise Internal(f"output '{name}' is of {tensor.dtype}, which is no datatype of the protocol")
        tensor = plain_tensor(tensor)
        buffer = DeviceBuffer(self.stream.memory, tensor.data_ptr(), tensor.nbytes, tensor)
        return device_tensor(name, datatype, tuple(tensor.shape), buffer)

    @contextmanager
    def computing(self) -> Iterator[None]:
        with self.stream.current():
            yield

    def synchronize(self) -> None:
        self.stream.synchronize()

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
        return StreamDevice(torch.device("cuda", spec.device_id), spec)
    return ModelsOwnDevice() if spec.kind is InstanceKind.MODEL else Device()
