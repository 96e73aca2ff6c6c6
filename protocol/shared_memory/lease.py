"""Lease: one request's use of shared memory regions, from decoding to the end of its response.

Flow: edge → [lease] → `regions` for bounds and counts → the memory (`system`, `cuda`). Owned by the request; its end,
also by cancellation, releases all.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

import msgspec
import numpy as np

from protocol.errors import InvalidArgument
from protocol.messages import Buffer, Tensor
from protocol.shared_memory.cuda import ClientDeviceMemory
from protocol.shared_memory.regions import Region, Regions
from protocol.shared_memory.system import Segment
from protocol.tensors.device_tensor import DeviceBuffer, DeviceTensor
from protocol.tensors.shared_tensor import SharedBytes

MAX_SIZE = 2**64 - 1  # Triton counts bytes in 64 bits


class _Use:
    """Regions in use, and bytes counted as read, until nothing holds this any more."""

    __slots__ = ("_held", "_regions", "byte_size")

    def __init__(self, regions: Regions, held: Mapping[str, Region]) -> None:
        self._regions = regions
        self._held = held
        self.byte_size = 0

    def __del__(self) -> None:
        self._regions.end_use(self._held.values(), self.byte_size)


class Lease:
    """Keeps the regions that it has used: while it lasts they may be unregistered, but stay mapped.

    A context manager; its end releases the regions and the bytes that it counted, on every path: those of `view` and
    `shared` when these are gone too. What `read` returned stays valid after that, an `OutputTarget` does not. One task
    at a time may use a lease, from any thread: large tensors are better copied in one, and the lease must not end
    before that thread does.
    """

    # Nothing else here holds the use, not even for a moment: the traceback of an error would.
    __slots__ = ("_held", "_regions", "_use", "is_over", "may_be_on_device")

    def __init__(self, regions: Regions) -> None:
        self.may_be_on_device = regions.device_count > 0  # whether any region is
        self._regions = regions
        self._held: dict[str, Region] = {}
        self._use = _Use(regions, self._held)
        self.is_over = False

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.is_over:
            self.is_over = True
            del self._use

    def read(self, region: str, offset: int, byte_size: int) -> Buffer:
        """A read-only copy of `byte_size` bytes at `offset` in the region.

        Raises:
            NotFound: no such region.
            InvalidArgument: outside its bounds, or its client has truncated it.
            PayloadTooLarge, Unavailable: more bytes than the server holds for one request, or for all.
        """
        used = self._place(region, offset, byte_size)
        self._reserve(byte_size)
        return used.memory.read(used.base + offset, byte_size)

    def view(self, region: str, offset: int, byte_size: int) -> DeviceBuffer | None:
        """The range in device memory, without a copy; None if the region is not on a device. Its client can change it
        meanwhile.

        Raises:
            NotFound, InvalidArgument: as `read`.
        """
        used = self._place(region, offset, byte_size)
        memory = used.memory
        if not isinstance(memory, ClientDeviceMemory):
            return None
        return DeviceBuffer(memory.device, memory.address + used.base + offset, byte_size, self._use)

    def shared(self, region: str, offset: int, byte_size: int) -> SharedBytes | None:
        """The range in system memory, without a copy; None if the region is on a device.

        Raises:
            as `read`; also where the client has truncated the region already.
        """
        used = self._place(region, offset, byte_size)
        memory = used.memory
        if not isinstance(memory, Segment):
            return None
        position = used.base + offset
        memory.check_holds(position, byte_size)
        self._reserve(byte_size)
        return _Shared(memory, position, byte_size, self._use)

    def output(self, region: str, offset: int, byte_size: int) -> OutputTarget:
        """The range that an output is to be written to.

        Raises:
            NotFound, InvalidArgument: as `read`.
        """
        used = self._place(region, offset, byte_size)
        return OutputTarget(self, used, used.base + offset, byte_size)

    def _place(self, name: str, offset: int, byte_size: int) -> Region:
        """The region, kept, with so many bytes at the offset; the numbers are the client's, of any size and sign."""
        if self.is_over:
            raise _too_late()
        region = self._held.get(name)
        if region is None:
            region = self._held[name] = self._regions.acquire(name)
        end = region.record.byte_size
        if 0 <= offset < end and 0 <= byte_size <= end - offset:
            return region
        raise _outside(region, offset, byte_size)

    def _reserve(self, byte_size: int) -> None:
        self._regions.reserve_bytes(byte_size, self._use.byte_size)
        self._use.byte_size += byte_size


class _Shared(msgspec.Struct, eq=False, frozen=True):
    """Implements `protocol.tensors.shared_tensor.SharedBytes`."""

    _segment: Segment
    _position: int
    byte_size: int
    _use: _Use

    def read(self) -> Buffer:
        memory = np.empty(self.byte_size, np.uint8).data
        self._segment.read_into(self._position, memory)
        return memory.toreadonly()

    def read_into(self, memory: memoryview) -> None:
        self._segment.read_into(self._position, memory)


class OutputTarget(msgspec.Struct, eq=False, frozen=True):
    """The range of `byte_size` bytes for one output, valid as long as its lease."""

    _lease: Lease
    _region: Region
    _position: int
    byte_size: int

    @property
    def is_on_device(self) -> bool:
        return isinstance(self._region.memory, ClientDeviceMemory)

    def write(self, output: Tensor) -> None:
        """Write the output's raw layout; what lies behind it in the target stays as it was. From device to device the
        host takes no part.

        Raises:
            InvalidArgument: the output is larger than the target, or the client has truncated the region.
            Unavailable: the memory refuses.
        """
        if self._lease.is_over:
            raise _too_late()
        size = output.byte_size
        if size > self.byte_size:
            raise InvalidArgument(
                f"shared memory size specified with the request for output '{output.name}' ({self.byte_size} bytes) "
                f"should be at least {size} bytes to hold the results"
            )
        memory = self._region.memory
        if isinstance(output, DeviceTensor) and isinstance(memory, ClientDeviceMemory):
            memory.device.copy(memory.address + self._position, output.buffer.address, size)
        else:
            memory.write(self._position, output.data)


def _too_late() -> RuntimeError:
    return RuntimeError("shared memory is used after the end of its lease")  # and may be another's by then


def _outside(region: Region, offset: int, byte_size: int) -> InvalidArgument:
    name = region.record.name
    if not 0 <= offset < region.record.byte_size:
        return InvalidArgument(f"Invalid offset for shared memory region: '{name}'")
    if byte_size > MAX_SIZE - offset:
        return InvalidArgument(
            f"Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) exceeds maximum value "
            f"({MAX_SIZE}) for region '{name}'"
        )
    return InvalidArgument(f"Invalid offset + byte size for shared memory region: '{name}'")
