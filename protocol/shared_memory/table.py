"""Shared memory table: the regions that clients register, query and unregister, and the leases of requests on them.

One for each server, made by the composition root and passed to both edges; system and CUDA regions share one name
space. Source: Triton's system and CUDA shared memory extensions. Where Triton answers a client's mistake (a segment
that is not there) with INTERNAL, this raises InvalidArgument with the same text.
"""

from __future__ import annotations

from protocol.errors import Internal, InvalidArgument, NotFound, ServerError, Unsupported
from protocol.shared_memory.cuda import open_device_memory
from protocol.shared_memory.lease import Lease
from protocol.shared_memory.regions import (
    MAX_SHOWN_LENGTH,
    CudaRegion,
    Record,
    Region,
    Regions,
    SystemRegion,
    close_memory,
    shown,
)
from protocol.shared_memory.system import descriptor_limit, is_text, open_segment, segment_name

MAX_REGIONS = 1024
MAX_BYTES_IN_USE = 2**31
MAX_NAME_LENGTH = MAX_SHOWN_LENGTH

_WORDS: dict[type[Record], str] = {SystemRegion: "system", CudaRegion: "cuda"}
_KINDS: dict[type[Record], str] = {SystemRegion: "system", CudaRegion: "CUDA"}


class SharedMemoryTable:
    """Every method may be called from any thread; all are quick, but for the first `register_cuda`.

    Args:
        allow_registration: whether clients may register and unregister (`--allow-client-shm`). Status works always.
        max_regions: how many regions there may be. A system region costs a descriptor, so there are never more than
            half of the descriptors that the process may open.
        max_bytes_in_use: how many bytes of inputs copied from regions all leases together may hold.
    """

    def __init__(
        self,
        *,
        allow_registration: bool,
        max_regions: int = MAX_REGIONS,
        max_bytes_in_use: int = MAX_BYTES_IN_USE,
    ) -> None:
        self._allow_registration = allow_registration
        self._regions = Regions(
            max_regions=min(max_regions, descriptor_limit() // 2), max_bytes_in_use=max_bytes_in_use
        )

    def lease(self) -> Lease:
        """For one request; a context manager that lasts until its response is made."""
        return Lease(self._regions)

    def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register `byte_size` bytes at `offset` of the segment that has this key (with or without leading slashes).

        The segment stays open until the region goes, also when its client unlinks it.

        Raises:
            Unsupported: clients may not register, or the operating system has no such segments.
            InvalidArgument: name or key is not valid, no such segment, or it does not hold the region.
            AlreadyExists: the name is taken.
            Unavailable: too many regions or descriptors.
        """
        self._check_registration(SystemRegion, name)
        segment_name(key, region=name)
        self._regions.check_vacant(name)
        record = SystemRegion(name, key, offset, byte_size)
        self._add(Region(record, open_segment(name, key, offset, byte_size), base=offset))

    def register_cuda(self, name: str, raw_handle: bytes, device_id: int, byte_size: int) -> None:
        """Register device memory by the 64 bytes of its `cudaIpcMemHandle_t` (decoded, where it came as base64).

        Raises:
            Unsupported: clients may not register.
            InvalidArgument: no GPU, name or handle is not valid, or the memory does not hold the region.
            AlreadyExists: the name is taken.
            Unavailable: too many regions.
        """
        self._check_registration(CudaRegion, name)
        self._regions.check_vacant(name)
        memory = open_device_memory(name, raw_handle, device_id, byte_size)
        self._add(Region(CudaRegion(name, device_id, byte_size), memory))

    def unregister_system(self, name: str = "") -> None:
        """Unregister one region, or all where there is no name. An unknown name, or one of the other kind, is no error.

        A region that leases hold stays visible and keeps its name until the last of them ends, also one taken
        meanwhile; then it goes.

        Raises:
            Unsupported: clients may not unregister.
        """
        self._unregister(SystemRegion, name)

    def unregister_cuda(self, name: str = "") -> None:
        """As `unregister_system`.

        Raises:
            Unsupported: clients may not unregister.
            Internal: the device did not take its memory back; the regions are gone nevertheless.
        """
        self._unregister(CudaRegion, name)

    def system_status(self, name: str = "") -> tuple[SystemRegion, ...]:
        """The named region, or all where there is no name, in the order of their names.

        Raises:
            NotFound: no region has this name, or it is of the other kind.
        """
        self._check_known(SystemRegion, CudaRegion, name)
        return tuple(r for r in self._regions.records() if isinstance(r, SystemRegion) and (not name or r.name == name))

    def cuda_status(self, name: str = "") -> tuple[CudaRegion, ...]:
        """As `system_status`."""
        self._check_known(CudaRegion, SystemRegion, name)
        return tuple(r for r in self._regions.records() if isinstance(r, CudaRegion) and (not name or r.name == name))

    def close(self) -> None:
        """Close all regions, those in use with their last lease. For the end of the server."""
        for kind in _WORDS:
            self._regions.remove(kind)

    def _check_allowed(self) -> None:
        if not self._allow_registration:
            raise Unsupported(
                "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
            )

    def _check_registration(self, kind: type[Record], name: str) -> None:
        self._check_allowed()
        if not name:
            raise InvalidArgument(f"'region name' is necessary to register {_WORDS[kind]} shared memory region")
        if len(name) > MAX_NAME_LENGTH:
            raise InvalidArgument(
                f"the name of a shared memory region has at most {MAX_NAME_LENGTH} characters, got {len(name)}"
            )
        if "\0" in name or not is_text(name):
            raise InvalidArgument(f"invalid shared memory region name '{shown(name)}', it must be text without NUL")

    def _check_known(self, kind: type[Record], other: type[Record], name: str) -> None:
        if not name:
            return
        record = self._regions.find(name)
        if record is None:
            raise NotFound(f"Unable to find {_WORDS[kind]} shared memory region: '{shown(name)}'")
        if not isinstance(record, kind):
            raise NotFound(
                f"The region named '{name}' is registered as {_KINDS[other]} shared memory, not {_KINDS[kind]} "
                f"shared memory"
            )

    def _add(self, region: Region) -> None:
        try:
            self._regions.add(region)
        except ServerError:  # another thread has taken the name or the last place meanwhile
            close_memory(region)
            raise

    def _unregister(self, kind: type[Record], name: str) -> None:
        self._check_allowed()
        failed = self._regions.remove(kind, name)
        if failed:
            names = "".join(f"{name} ," for name in failed)
            raise Internal(f"Failed to unregister the following {_WORDS[kind]} shared memory regions: {names}")
