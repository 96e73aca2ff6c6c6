"""A lease: one request's use of shared memory, from decoding to the end of its response.

Edge -> [lease] -> `regions` for the bounds and the counts -> the memory (`system`, `cuda`).
"""

from __future__ import annotations

from types import TracebackType

from protocol.device_tensor import DeviceBuffer, DeviceTensor
from protocol.errors import InvalidArgument
from protocol.messages import Buffer, Tensor
from protocol.shared_memory.cuda import ClientDeviceMemory
from protocol.shared_memory.regions import Region, Regions

MAX_SIZE = 2**64 - 1  # Triton counts bytes in 64 bits


class Lease:
    """Keeps the regions that it has touched: while it lasts they may be unregistered, but they do not go.

    A context manager; its end gives the regions back and the bytes that it counted, on every path. What `read` gave
    stays valid after that, an `OutputTarget` does not. One task at a time may use a lease, from any thread: large
    tensors are better moved in one, and the lease must not end before that thread does.
    """

    __slots__ = ("_bytes", "_held", "_is_over", "_regions")

    def __init__(self, regions: Regions) -> None:
        self._regions = regions
        self._held: dict[str, Region] = {}
        self._bytes = 0
        self._is_over = False

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        held, self._held = self._held, {}
        for region in held.values():
            self._regions.release(region)
        if self._bytes:
            self._regions.free_bytes(self._bytes)
            self._bytes = 0

    def read(self, region: str, offset: int, byte_size: int) -> Buffer:
        """A read-only copy of `byte_size` bytes at `offset` in the region.

        Raises:
            NotFound: no such region.
            InvalidArgument: outside its bounds, or its client has truncated it.
            PayloadTooLarge, Unavailable: more bytes than the server holds for one request, or for all.
        """
        used = self._use(region)
        position = _position(used, offset, byte_size)
        self._regions.reserve_bytes(byte_size, self._bytes)
        self._bytes += byte_size
        return used.memory.read(position, byte_size)

    def view(self, region: str, offset: int, byte_size: int) -> DeviceBuffer | None:
        """The bytes where they are, if that is on a device; else None. They keep their region by themselves, also
        after the lease's end. Their client can change them meanwhile.

        Raises:
            NotFound, InvalidArgument: as `read`.
        """
        used = self._use(region)
        position = _position(used, offset, byte_size)
        memory = used.memory
        if not isinstance(memory, ClientDeviceMemory):
            return None
        return DeviceBuffer(memory.device, memory.address + position, byte_size, _Use(self._regions, region))

    def output(self, region: str, offset: int, byte_size: int) -> OutputTarget:
        """Where an output is to be written when it is there.

        Raises:
            NotFound, InvalidArgument: as `read`.
        """
        used = self._use(region)
        return OutputTarget(self, used, _position(used, offset, byte_size), byte_size)

    def check_lasts(self) -> None:
        """Raises RuntimeError after the end: the memory may be another's by then."""
        if self._is_over:
            raise RuntimeError("shared memory is used after the end of its lease")

    def _use(self, name: str) -> Region:
        self.check_lasts()
        region = self._held.get(name)
        if region is None:
            region = self._held[name] = self._regions.acquire(name)
        return region


class _Use:
    """A use of a region that ends when nobody holds it any more."""

    __slots__ = ("_region", "_regions")

    def __init__(self, regions: Regions, name: str) -> None:
        self._regions = regions
        self._region = regions.acquire(name)

    def __del__(self) -> None:
        self._regions.release(self._region)


class OutputTarget:
    """A place of `byte_size` bytes for one output, as long as its lease lasts."""

    __slots__ = ("_lease", "_position", "_region", "byte_size")

    def __init__(self, lease: Lease, region: Region, position: int, byte_size: int) -> None:
        self._lease = lease
        self._region = region
        self._position = position
        self.byte_size = byte_size

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
        self._lease.check_lasts()
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


def _position(region: Region, offset: int, byte_size: int) -> int:
    """Where the bytes begin in the region's memory; all numbers are the client's, of any size and sign."""
    name = region.record.name
    end = region.record.byte_size
    if not 0 <= offset < end:
        raise InvalidArgument(f"Invalid offset for shared memory region: '{name}'")
    if byte_size > MAX_SIZE - offset:
        raise InvalidArgument(
            f"Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) exceeds maximum value "
            f"({MAX_SIZE}) for region '{name}'"
        )
    if not 0 <= byte_size <= end - offset:
        raise InvalidArgument(f"Invalid offset + byte size for shared memory region: '{name}'")
    return region.base + offset
