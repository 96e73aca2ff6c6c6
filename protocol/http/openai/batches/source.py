"""Source of the lines of batches: reads them from the store's files, those that follow each other at once."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

import trio

from protocol.errors import NotFound
from protocol.messages import Buffer

# Read at once, for the lines that follow, and for those just before that begin later; what is longer is read alone.
_BLOCK_SIZE = 256 << 10
_BEFORE = 32 << 10
_LONG_ABOVE = 128 << 10
_MOST_BLOCKS = 8


class FileReader(Protocol):
    """What reads the files: a `protocol.jobs.batches.store.BatchStore`."""

    async def read_file(self, payload: str, start: int, size: int) -> bytes: ...


class NoFiles:
    """Implements `FileReader` where there are none."""

    async def read_file(self, payload: str, start: int, size: int) -> bytes:
        raise NotFound("there are no files")


class LineSource:
    """Lines run nearly in their order, many at a time: of each file the last block is held."""

    def __init__(self, files: FileReader) -> None:
        self._files = files
        self._blocks: OrderedDict[str, tuple[int, bytes]] = OrderedDict()
        self._reading = trio.Lock()

    async def read(self, payload: str, start: int, size: int) -> Buffer:
        """Raises NotFound where the file is gone."""
        if size > _LONG_ABOVE:
            return await self._files.read_file(payload, start, size)
        line = self._held(payload, start, size)
        if line is not None:
            return line
        async with self._reading:  # of many that miss, one reads for all
            line = self._held(payload, start, size)
            if line is None:
                first = max(start - _BEFORE, 0)
                block = await self._files.read_file(payload, first, _BLOCK_SIZE)
                self._hold(payload, first, block)
                line = memoryview(block)[start - first : start - first + size]
        return line

    def _held(self, payload: str, start: int, size: int) -> Buffer | None:
        first, block = self._blocks.get(payload, (0, b""))
        place = start - first
        return memoryview(block)[place : place + size] if place >= 0 and place + size <= len(block) else None

    def _hold(self, payload: str, start: int, block: bytes) -> None:
        self._blocks[payload] = start, block
        self._blocks.move_to_end(payload)
        if len(self._blocks) > _MOST_BLOCKS:
            self._blocks.popitem(last=False)
