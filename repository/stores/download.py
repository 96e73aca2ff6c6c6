"""Builds a model's folder on local disk, from cached files and downloads.

Flow: snapshot → [download] → a folder as of a local repository. Blocks; `actors/lifecycle/download.py` runs the parts
of the files beside each other, in threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from protocol.errors import Internal, InvalidArgument, Unavailable
from repository.held_directory import HeldDirectory
from repository.layout import ModelDirectory
from repository.stores.client import StoredObject
from repository.stores.snapshot import Snapshot

# Larger files are downloaded in parts of this size.
PART_BYTES = 16 * 1024 * 1024


@dataclass(eq=False, slots=True)
class Part:
    """Bytes of one file, from `position`, which moves on as they come, to before `end`."""

    file: FileDownload
    position: int
    end: int


@dataclass(eq=False, slots=True)
class FileDownload:
    """One file on its way: it is in the model's folder, and in the cache, when all its `parts` are done and `finish`
    was called."""

    item: StoredObject
    partial: Path
    target: Path
    parts: list[Part] = field(default_factory=list)


class LocalCopy(HeldDirectory):
    """The folder of one model. Its files are all there when each of `missing` is finished.

    Attributes:
        received: how many bytes have come so far.
        cached: how many files were in the cache.
    """

    def __init__(self, name: str, snapshot: Snapshot, wanted: Callable[[str], bool] = lambda path: True) -> None:
        """
        Args:
            wanted: tells by their paths which files are; others are left out.

        Raises:
            InvalidArgument: the listing holds what no folder can.
            Internal: the cache cannot be written.
        """
        self._snapshot = snapshot
        self._cache = snapshot.cache
        self._url = snapshot.bucket.url
        self._counting = threading.Lock()
        self.received = 0
        self.cached = 0
        self.missing: list[FileDownload] = []
        if snapshot.conflicts:
            raise InvalidArgument(
                f"{snapshot.url}: {', '.join(map(repr, snapshot.conflicts))}: both an object and a directory of objects"
            )
        root = self._cache.new_folder()
        super().__init__(ModelDirectory(name, root / name, root), lambda: self._cache.remove_folder(root))
        try:
            self.directory.path.mkdir()
            for folder in snapshot.folders:
                (self.directory.path / folder).mkdir(parents=True, exist_ok=True)
            for path, item in snapshot.files.items():
                if wanted(path):
                    self._begin(item, self.directory.path / path)
        except OSError as exc:
            self.abandon()
            raise self._unwritable(exc) from None

    @property
    def missing_bytes(self) -> int:
        return sum(file.item.size for file in self.missing)

    def fetch(self, part: Part, check: Callable[[], None]) -> None:
        """Download what is left of a part. A part that fails may be fetched again, and goes on where it was.

        Args:
            check: called between chunks; may raise to give up.

        Raises:
            Unavailable: the connection broke, or the object has changed since it was listed; and as `Bucket.read`.
        """
        if part.position == part.end:
            return
        file = part.file
        try:
            descriptor = os.open(file.partial, os.O_WRONLY)
        except OSError as exc:
            raise self._unwritable(exc) from None
        try:
            for chunk in self._snapshot.bucket.read(file.item, part.position, part.end):
                check()
                if part.position + len(chunk) > part.end:
                    break
                while chunk:
                    written = os.pwrite(descriptor, chunk, part.position)
                    part.position += written
                    chunk = chunk[written:]
                    with self._counting:
                        self.received += written
        except OSError as exc:
            raise self._unwritable(exc) from None
        finally:
            os.close(descriptor)
        if part.position != part.end:
            raise Unavailable(
                f"{self._url}: cannot read '{file.item.key}': the store sent {part.position} bytes, expected {part.end}"
            )

    def finish(self, file: FileDownload) -> None:
        """Once all parts of it are there."""
        try:
            self._cache.keep(self._url, file.item, file.partial, file.target)
        except OSError as exc:
            raise self._unwritable(exc) from None

    def abandon(self) -> None:
        """Remove the folder, and what is half there."""
        for file in self.missing:
            file.partial.unlink(missing_ok=True)
        self.release()

    def _begin(self, item: StoredObject, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not item.size:
            target.touch()
        elif self._cache.link(self._url, item, target):
            self.cached += 1
        else:
            file = FileDownload(item, self._cache.partial(), target)
            file.parts = [
                Part(file, start, min(start + PART_BYTES, item.size)) for start in range(0, item.size, PART_BYTES)
            ]
            self.missing.append(file)

    def _unwritable(self, error: OSError) -> Internal:
        return Internal(f"{self._snapshot.url}: cannot write the local copy '{self.directory.path}': {error.strerror}")
