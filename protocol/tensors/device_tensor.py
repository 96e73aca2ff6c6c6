"""Device tensors: tensors whose elements lie in GPU memory, with their owner and their copy to the host.

A producer has synchronised before it hands a device tensor over, so a consumer may read it on any stream, and must hold
it until that stream is synchronised. It is passed on like any tensor; only a consumer that needs its bytes copies them
to the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from protocol.datatypes import DataType
from protocol.messages import Buffer, InferenceRequest, Tensor
from protocol.tensors.dlpack import make_capsule


class DeviceMemory(Protocol):
    """The memory of one device. Calls may come from any thread, and return when the operation is complete.

    Raises `protocol.errors.Unavailable` where the device, or the host's memory, fails.
    """

    @property
    def device(self) -> tuple[int, int]:
        """DLPack's device type and number."""

    def read(self, address: int, byte_size: int) -> Buffer:
        """A read-only copy on the host."""

    def write(self, address: int, data: Buffer) -> None:
        """Copy from the host."""

    def copy(self, target: int, source: int, byte_size: int) -> None:
        """Copy from this device to this device."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceBuffer:
    """So many bytes of device memory from an address on. `owner` keeps them alive; the last reference frees them."""

    memory: DeviceMemory
    address: int
    byte_size: int
    owner: object

    @property
    def device(self) -> tuple[int, int]:
        return self.memory.device

    def part(self, offset: int, byte_size: int) -> DeviceBuffer:
        return DeviceBuffer(self.memory, self.address + offset, byte_size, self.owner)


class DeviceTensor(Tensor, kw_only=True):
    """A tensor in the protocol's raw layout, on a device; never of BYTES.

    Libraries take it as it is (`torch.from_dlpack(tensor)`). `data` copies it to the host, once, and blocks for as long
    as that takes: outside of a backend's thread it is for tensors that are small.
    """

    buffer: DeviceBuffer
    _host: Buffer | None = None

    @property  # type: ignore[misc]  # in the place of a field
    def data(self) -> Buffer:  # type: ignore[override]  # read only, and made when it is asked for
        if self._host is None:
            buffer = self.buffer
            self._host = buffer.memory.read(buffer.address, buffer.byte_size)
        return self._host

    @property
    def byte_size(self) -> int:
        return self.buffer.byte_size

    def under(self, name: str, shape: tuple[int, ...]) -> DeviceTensor:
        other = device_tensor(name, self.datatype, shape, self.buffer)
        other._host = self._host
        return other

    def on_host(self) -> Tensor:
        """A copy in host memory."""
        return Tensor(self.name, self.datatype, self.shape, self.data)

    def __dlpack__(self, **_: Any) -> Any:
        """A capsule over the same memory, which is complete on every stream."""
        return make_capsule(self.buffer.address, self.datatype, self.shape, self.buffer.device, self.buffer)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.buffer.device


def device_tensor(name: str, datatype: DataType, shape: tuple[int, ...], buffer: DeviceBuffer) -> DeviceTensor:
    return DeviceTensor(name, datatype, shape, b"", buffer=buffer)  # the field that `data` is made of has nothing


def bring_to_host(request: InferenceRequest) -> None:
    """Copy all inputs of a request to host memory. Blocks; raises as `DeviceMemory`."""
    request.inputs = [each.on_host() if isinstance(each, DeviceTensor) else each for each in request.inputs]
    request.has_device_inputs = False
