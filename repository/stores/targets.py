"""Places that files are written to: a folder, or a bucket of an object store. Blocks; used by a thread."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from protocol.errors import Forbidden
from repository.stores.client import Bucket


class FileTarget(Protocol):
    """Each file is written once, and whole; one of the same name is replaced."""

    def open(self) -> None:
        """Raises OSError or ServerError: nothing can be written there."""

    def write(self, name: str, data: bytes) -> None:
        """Returns when it is on the disk, or in the bucket. Raises OSError or ServerError."""


class FolderTarget:
    """A folder; readers see no file that is not complete. Files are the server's user's only."""

    def __init__(self, folder: Path, within: Path | None = None) -> None:
        """`within` is a folder that it must lie in, wherever links lead; without links in its own path."""
        self._folder = folder
        self._within = within

    def open(self) -> None:
        """Raises Forbidden, too: it does not lie within its folder. So does `write`."""
        if self._within is not None:
            check_within(self._folder, Path(os.path.realpath(self._folder)), self._within)
        self._folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise PermissionError(f"no file can be written into '{self._folder}'")

    def write(self, name: str, data: bytes) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if self._within is not None:
                check_within(path.parent, opened_path(folder, path.parent), self._within)
            _write(folder, path.name, data)
        finally:
            os.close(folder)


class BucketTarget:
    """A place in a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def open(self) -> None:
        """Looked at when the first file is written: listing may take long, or be forbidden."""

    def write(self, name: str, data: bytes) -> None:
        path = self._bucket.url.path
        self._bucket.write(f"{path}/{name}" if path else name, data)


def _write(folder: int, name: str, data: bytes) -> None:
    """A new file in an open folder; it and its name are on the disk then."""
    partial = f".{name}.partial"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    try:
        with open(os.open(partial, flags, 0o600, dir_fd=folder), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except OSError:
        with suppress(OSError):
            os.unlink(partial, dir_fd=folder)
        raise


def opened_path(descriptor: int, path: Path) -> Path:
    """Where an open file or folder lies, without links; where the system does not say, where it lies now."""
    link = f"/proc/self/fd/{descriptor}"
    return Path(os.path.realpath(link if os.path.exists(link) else path))


def check_within(path: Path, real: Path, folder: Path) -> None:
    """`real` is where a path leads, `folder` where it must lead, both without links. Raises Forbidden."""
    if not real.is_relative_to(folder):
        raise Forbidden(f"'{path}' leads out of '{folder}'")
