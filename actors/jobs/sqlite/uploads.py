"""Files of the job store while they are written: uploads, and what batches give.

Owned by whoever writes one; all that is written and not kept yet counts as if it were.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import BinaryIO, TypeAlias

import trio

from actors.jobs.sqlite.files import PayloadFiles
from protocol.errors import InsufficientStorage
from protocol.jobs.store import Limits
from protocol.messages import Buffer

MakeRoom: TypeAlias = Callable[[int], Awaitable[int]]


class Uploads:
    """Attributes:
    byte_size: of all that are under way.
    """

    def __init__(self) -> None:
        self.byte_size = 0


class PayloadWriter:
    """Implements `protocol.jobs.batches.store.FileWriter`. Writes in threads; made by `begin`."""

    def __init__(
        self, files: PayloadFiles, folder: Path, limits: Limits, uploads: Uploads, make_room: MakeRoom | None
    ) -> None:
        """`make_room` makes room for so many bytes of all uploads, and says for how many there is; None for a result,
        which is written in any case."""
        self.payload = ""
        self.size = 0
        self.is_kept = False
        self._files = files
        self._folder = folder
        self._limits = limits
        self._uploads = uploads
        self._make_room = make_room
        self._room = 0
        self._file: BinaryIO | None = None

    async def write(self, data: Buffer) -> None:
        self.size += len(data)
        self._uploads.byte_size += len(data)
        if self._make_room is not None and self._uploads.byte_size > self._room:
            self._room = await self._make_room(self._uploads.byte_size)
        await self._in_thread(lambda: self._write(data))

    async def finish(self) -> None:
        await self._in_thread(self._finish)

    async def close(self) -> None:
        self._uploads.byte_size -= self.size
        self.size = 0
        with trio.CancelScope(shield=True):  # as long as the disk takes
            await trio.to_thread.run_sync(self._close)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        with trio.CancelScope(shield=True):  # the file is not closed under a thread that writes
            try:
                await trio.to_thread.run_sync(work)
            except OSError as error:
                raise InsufficientStorage(
                    f"the file could not be written to the job store: {error.strerror or error}"
                ) from None

    def _write(self, data: Buffer) -> None:
        if self._make_room is not None:
            check_disk(self._folder, self._limits)
        if self._file is None:
            self.payload, self._file = self._files.begin()
        self._file.write(data)

    def _finish(self) -> None:
        if self._file is None:
            self.payload, self._file = self._files.begin()
        self._files.finish(self.payload, self._file)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self.payload and not self.is_kept:
            self._files.discard(self.payload)


def check_disk(folder: Path, limits: Limits, unused: int = 0) -> None:
    """Raises InsufficientStorage while too little is left for the results of what runs, with what is `unused` in files
    that are there. Blocks for a moment."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize + unused
    if free < limits.reserve:
        raise InsufficientStorage(
            f"the disk of the job store has {free} bytes left, and {limits.reserve} are kept free for the results of "
            f"jobs that run"
        )
