"""HPACK's table of headers in little memory: each connection has two, mostly of a few entries."""

from __future__ import annotations

from typing import Any

from hpack.table import HeaderTable


class _Entries(list[tuple[bytes, bytes]]):
    """The newest first. hpack keeps a deque, which has room for 64 entries from the beginning; a table of 4096 bytes
    has 128 at most, so to move them costs nothing that counts."""

    __slots__ = ()

    def appendleft(self, entry: tuple[bytes, bytes]) -> None:
        self.insert(0, entry)


class SmallHeaderTable(HeaderTable):
    """As hpack's."""

    def __init__(self) -> None:
        super().__init__()
        entries: Any = _Entries()
        self.dynamic_entries = entries
