"""The cache `local` (`--cache-config local,size=<bytes>`): entries in the server's own memory, evicted least recently
used first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from actors.cache.interface import Cache, read_integer

# What an entry costs beside its value: its key, two objects and a place in the table.
ENTRY_OVERHEAD_BYTES = 256
MINIMUM_SIZE = 1024


class LruEntries:
    """Values by key within a budget of bytes. Plain and synchronous.

    - An entry costs the bytes of its value and `ENTRY_OVERHEAD_BYTES`; all together never cost more than the budget.
    - Looking an entry up makes it the most recently used; adding one drops the least recently used until it fits.
    - What could never fit is refused, and drops nothing.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()  # the least recently used first
        self.used_bytes = 0

    def get(self, key: bytes) -> bytes | None:
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def can_hold(self, value: bytes) -> bool:
        return len(value) + ENTRY_OVERHEAD_BYTES <= self._budget

    def add(self, key: bytes, value: bytes) -> bool:
        """Whether it was added; False if the key is there already. The value must be one that `can_hold` admits."""
        if key in self._entries:
            return False
        cost = len(value) + ENTRY_OVERHEAD_BYTES
        while self.used_bytes + cost > self._budget:
            _, dropped = self._entries.popitem(last=False)
            self.used_bytes -= len(dropped) + ENTRY_OVERHEAD_BYTES
        self._entries[key] = value
        self.used_bytes += cost
        return True

    def clear(self) -> None:
        self._entries.clear()
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)


class LocalCache(Cache):
    """One pool for all models of one server. Setting: `size`, in bytes."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        rest = dict(settings)
        self._entries = LruEntries(read_integer(rest, "size", None, minimum=MINIMUM_SIZE, maximum=2**63 - 1))
        super().__init__(rest)

    async def look_up(self, key: bytes) -> bytes | None:
        return self._entries.get(key)

    async def insert(self, key: bytes, value: bytes) -> bool:
        return not self._entries.can_hold(value) or self._entries.add(key, value)

    async def close(self) -> None:
        self._entries.clear()
