"""Shared memory regions of one server: registration, reference counts, and a bound on copied bytes.

Between `table`, which registers and unregisters, and `lease`, which uses. A region that is unregistered while in use
stays, its name taken, until the last request ends. Every method may be called from any thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from protocol.errors import AlreadyExists, NotFound, PayloadTooLarge, ServerError, Unavailable
from protocol.messages import Buffer

logger = logging.getLogger(__name__)

MAX_SHOWN_LENGTH = 1024


def shown(text: str) -> str:
    """A client's text as an error may repeat it: of bounded length, and encodable."""
    if len(text) > MAX_SHOWN_LENGTH:
        text = f"{text[:MAX_SHOWN_LENGTH]}..."
    return text.encode(errors="replace").decode()


class Memory(Protocol):
    """Memory of a client. Positions and sizes are in bytes and were checked against the region's bounds, which do not
    say that the memory is still there: a client may take it away at any time, and that is an error, never a crash."""

    def read(self, position: int, size: int) -> Buffer:
        """A copy that nobody else can change, read-only."""

    def write(self, position: int, data: Buffer) -> None: ...

    def close(self) -> None:
        """Give the memory back. Raises only ServerError."""


@dataclass(frozen=True, slots=True)
class SystemRegion:
    """`key` as the client gave it; `offset` and `byte_size` in bytes, within the segment of that key."""

    name: str
    key: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class CudaRegion:
    name: str
    device_id: int
    byte_size: int


Record: TypeAlias = SystemRegion | CudaRegion


@dataclass(slots=True, eq=False)
class Region:
    """A region and its use. `base` is where it begins in its memory; `users` counts leases."""

    record: Record
    memory: Memory
    base: int = 0
    users: int = 0
    is_leaving: bool = False


class Regions:
    """At most `max_regions`; the copies that live leases hold sum to at most `max_bytes_in_use` bytes."""

    def __init__(self, *, max_regions: int, max_bytes_in_use: int) -> None:
        self._max_regions = max_regions
        self._max_bytes_in_use = max_bytes_in_use
        self._bytes_in_use = 0
        self._regions: dict[str, Region] = {}
        self.device_count = 0  # those in a device's memory
        # Reentrant: a use may end wherever its last holder goes, in the midst of what is done under the lock too.
        self._lock = threading.RLock()

    def find(self, name: str) -> Record | None:
        with self._lock:
            region = self._regions.get(name)
            return None if region is None else region.record

    def records(self) -> list[Record]:
        """In the order of their names."""
        with self._lock:
            return [self._regions[name].record for name in sorted(self._regions)]

    def check_vacant(self, name: str) -> None:
        """Refuse early what `add` would refuse, before any memory is opened.

        Raises:
            AlreadyExists: the name is taken, also by a region that waits for its last lease.
            Unavailable: there are as many regions as allowed.
        """
        with self._lock:
            self._check_vacant(name)

    def _check_vacant(self, name: str) -> None:
        if name in self._regions:
            raise AlreadyExists(f"shared memory region '{name}' already in manager")
        if len(self._regions) >= self._max_regions:
            raise Unavailable(
                f"failed to register shared memory region '{name}': {len(self._regions)} regions are registered "
                f"and the server allows no more than {self._max_regions}; unregister some first"
            )

    def add(self, region: Region) -> None:
        """Take the region over. Where this raises (as `check_vacant` does), the memory is still the caller's."""
        with self._lock:
            self._check_vacant(region.record.name)
            self._regions[region.record.name] = region
            self.device_count += isinstance(region.record, CudaRegion)

    def remove(self, kind: type[Record], name: str = "") -> list[str]:
        """Forget the named region, or all, of one kind: at once where no lease holds it, else when the last one ends.

        Returns the names of those whose memory could not be given back; they are gone nevertheless.
        """
        with self._lock:
            leaving = [
                region
                for region in list(self._regions.values())
                if isinstance(region.record, kind) and name in ("", region.record.name)
            ]
            for region in leaving:
                region.is_leaving = True
            idle = [region for region in leaving if not region.users]
            for region in idle:
                self._forget(region)
        return [region.record.name for region in idle if not close_memory(region)]

    def acquire(self, name: str) -> Region:
        """Use a region: until `end_use` it stays, its memory open. One that is leaving may still be used.

        Raises:
            NotFound: no region has this name.
        """
        with self._lock:
            region = self._regions.get(name)
            if region is None:
                raise NotFound(f"Unable to find shared memory region: '{shown(name)}'")
            region.users += 1
            return region

    def _forget(self, region: Region) -> None:
        del self._regions[region.record.name]
        self.device_count -= isinstance(region.record, CudaRegion)

    def reserve_bytes(self, size: int, held: int) -> None:
        """Count a copy of `size` bytes for a lease that has `held` bytes already; `end_use` gives them back.

        Raises:
            PayloadTooLarge: this lease alone would pass the limit.
            Unavailable: all leases together would.
        """
        limit = self._max_bytes_in_use
        if held + size > limit:
            raise PayloadTooLarge(
                f"the inputs of one request take {held + size} bytes from shared memory, which exceeds the maximum of "
                f"{limit} bytes that the server copies for all requests"
            )
        with self._lock:
            if self._bytes_in_use + size > limit:
                raise Unavailable(
                    f"no room for {size} bytes from shared memory: requests in flight hold {self._bytes_in_use} of at "
                    f"most {limit} bytes"
                )
            self._bytes_in_use += size

    def end_use(self, held: Iterable[Region], size: int) -> None:
        """Release acquired regions, and `size` reserved bytes."""
        gone = []
        with self._lock:
            self._bytes_in_use -= size
            for region in held:
                region.users -= 1
                if region.is_leaving and not region.users:
                    self._forget(region)
                    gone.append(region)
        for region in gone:
            close_memory(region)


def close_memory(region: Region) -> bool:
    """Give a region's memory back; a failure is logged; returns whether it succeeded."""
    try:
        region.memory.close()
    except ServerError as error:
        logger.warning("%s", error.message)
        return False
    return True
