"""Places that files are written to: a folder, or a bucket of an object store. Blocks; used by a thread."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from repository.stores.client import Bucket


class FileTarget(Protocol):
    """Each file is written once, and whole; one of the same name is replaced."""

    def open(self) -> None:
        """Raises OSError or ServerError: nothing can be written there."""

    def write(self, name: str, data: bytes) -> None:
        """Returns when it is on the disk, or in the bucket. Raises OSError or ServerError."""


class FolderTarget:
    """A folder; readers see no file that is not complete. Files are the server's user's only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise PermissionError(f"no file can be written into '{self._folder}'")

    def write(self, name: str, data: bytes) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        try:
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(path)
            _sync(path.parent)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


class BucketTarget:
    """A place in a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def open(self) -> None:
        """Looked at when the first file is written: listing may take long, or be forbidden."""

    def write(self, name: str, data: bytes) -> None:
        path = self._bucket.url.path
        self._bucket.write(f"{path}/{name}" if path else name, data)


def _sync(folder: Path) -> None:
    """The name of a new file is on the disk when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
