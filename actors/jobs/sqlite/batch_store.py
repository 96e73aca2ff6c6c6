"""The part of the SQLite job store that keeps batches and their files, which streams and threads write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import trio

from actors.jobs.sqlite import batches
from actors.jobs.sqlite.files import PayloadFiles
from actors.jobs.sqlite.room import ROW_BYTES, free_some, no_room
from actors.jobs.sqlite.thread import StoreThread
from actors.jobs.sqlite.uploads import PayloadWriter, Uploads
from protocol.errors import NotFound
from protocol.jobs.batches.batch import Batch
from protocol.jobs.batches.files import StoredFile
from protocol.jobs.batches.store import Change, FileWriter
from protocol.jobs.store import Limits


class SqliteBatches:
    """Implements `protocol.jobs.batches.store.BatchStore`; the store, which it is a part of, sets its attributes."""

    _folder: Path
    _limits: Limits
    _files: PayloadFiles
    _thread: StoreThread
    _uploads: Uploads

    async def file_writer(self, *, is_result: bool = False) -> FileWriter:
        await trio.lowlevel.checkpoint()
        make_room = None if is_result else self._make_room
        return PayloadWriter(self._files, self._folder, self._limits, self._uploads, make_room)

    async def keep_file(self, file: StoredFile, writer: FileWriter) -> None:
        written = cast(PayloadWriter, writer)
        await self._make_room(file.byte_size + ROW_BYTES)
        with trio.CancelScope(shield=True):  # whether it is kept must be known
            dropped = await self._thread.call(lambda db: batches.add_file(db, file, self._limits))
            written.is_kept = True
            await self._remove(dropped)

    async def find_file(self, owner: str, file_id: str) -> StoredFile | None:
        return await self._thread.call(lambda db: batches.find_file(db, owner, file_id))

    async def files(
        self, owner: str, purpose: str, after: str, limit: int, *, ascending: bool = False
    ) -> Sequence[StoredFile]:
        return await self._thread.call(lambda db: batches.files(db, owner, purpose, after, limit, ascending))

    async def remove_file(self, owner: str, file_id: str) -> bool:
        removed, dropped = await self._thread.call(lambda db: batches.remove_file(db, owner, file_id))
        await self._remove(dropped)
        return removed

    async def read_file(self, payload: str, start: int, size: int) -> bytes:
        try:
            return await trio.to_thread.run_sync(self._files.read_piece, payload, start, size)
        except FileNotFoundError:
            raise NotFound("the file has been removed") from None

    async def add_batch(self, batch: Batch, key: str = "", fingerprint: bytes = b"") -> tuple[Batch, bool]:
        kept, is_made, dropped = await self._thread.call(
            lambda db: batches.add_batch(db, batch, key, fingerprint, self._limits)
        )
        await self._remove(dropped)
        return kept, is_made

    async def find_batch(self, owner: str, batch_id: str) -> Batch | None:
        return await self._thread.call(lambda db: batches.find_batch(db, owner, batch_id))

    async def batches(self, owner: str, after: str, limit: int) -> Sequence[Batch]:
        return await self._thread.call(lambda db: batches.batches(db, owner, after, limit))

    async def unended_batches(self) -> Sequence[Batch]:
        return await self._thread.call(batches.unended_batches)

    async def change_batch(
        self,
        batch_id: str,
        change: Change,
        files: Sequence[tuple[StoredFile, FileWriter]] = (),
        kept_until: float = 0,
    ) -> Batch | None:
        new = [file for file, _ in files]
        with trio.CancelScope(shield=True):  # whether the files are kept must be known
            changed, is_changed, dropped = await self._thread.call(
                lambda db: batches.change_batch(db, batch_id, change, new, kept_until)
            )
            for _, writer in files:
                cast(PayloadWriter, writer).is_kept = is_changed
            await self._remove(dropped)
        return changed

    async def _make_room(self, size: int, what: str = "the file") -> int:
        """However much has to be forgotten for it. Returns for how many bytes there is room, which is at least for so
        many. Raises InsufficientStorage."""
        while True:
            room = await self._thread.call(lambda db: free_some(db, size, self._limits))
            await self._remove(room.dropped)
            if room.left >= size:
                return room.left
            if not room.may_grow:
                raise no_room(size, room, self._limits, what)

    async def _remove(self, names: Sequence[str]) -> None:
        if names:
            await trio.to_thread.run_sync(self._files.remove, names)
