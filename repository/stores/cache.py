"""Local cache of object stores: downloaded files by identity (key, ETag, size), and model folders linked from them.

    <root>/files/<two digits>/<digest>.<time>  a file, by bucket, key, ETag and size, with its time of change by which
                                               one is known that somebody has written to; never changed, only removed
    <root>/work/<process>/lock                 held while the process lives
    <root>/work/<process>/partial/<number>     a file on its way
    <root>/work/<process>/models/<number>      a model's folder: hard links into `files`

A file appears in `files` whole, by one rename. What a process that was killed has left under `work` is removed by the
next one that starts. Several servers may share a root. Everything here blocks, and may be called from several threads.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import logging
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from protocol.errors import Internal
from repository.stores.client import StoredObject
from repository.stores.urls import StoreUrl

logger = logging.getLogger("trioton.object_store")

# What stands in for a hard link where the file system has none.
_NO_LINKS = frozenset({errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EXDEV, errno.ENOSYS})


class FileCache:
    """`limit` is in bytes: above it, files that no model uses are removed, those first that were used longest ago."""

    def __init__(self, root: Path, limit: int) -> None:
        self._root = root
        self._limit = limit
        self._lock = threading.Lock()
        self._work: Path | None = None
        self._held: int | None = None
        self._numbers = itertools.count()

    def link(self, url: StoreUrl, item: StoredObject, target: Path) -> bool:
        """Put a file into a model's folder, if it is here as it is in the store."""
        stem = self._stem(url, item)
        for path in stem.parent.glob(f"{stem.name}.*"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if status.st_size != item.size or status.st_mtime_ns != int(path.suffix[1:]):
                    path.unlink()  # somebody has written to it
                    continue
                os.utime(path, ns=(time.time_ns(), status.st_mtime_ns))
                _link(path, target)
                return True
        return False

    def partial(self) -> Path:
        """An empty file to be written."""
        path = self._opened() / "partial" / str(next(self._numbers))
        path.touch()
        return path

    def keep(self, url: StoreUrl, item: StoredObject, partial: Path, target: Path) -> None:
        """Take a file that is complete into the cache and into a model's folder."""
        with partial.open("rb") as file:
            os.fsync(file.fileno())  # its name must not outlive its bytes
        partial.chmod(0o444)
        os.utime(partial, ns=(time.time_ns(), item.modified))
        _link(partial, target)  # first, so that it is in use when it appears
        stem = self._stem(url, item)
        stem.parent.mkdir(parents=True, exist_ok=True)
        partial.replace(stem.with_suffix(f".{item.modified}"))

    def new_folder(self) -> Path:
        """An empty directory for one model; `remove_folder` when nobody needs it any more."""
        path = self._opened() / "models" / str(next(self._numbers))
        path.mkdir()
        return path

    def remove_folder(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def trim(self) -> None:
        """Remove what is over the limit and in no model's folder."""
        files: list[tuple[int, int, bool, Path]] = []
        for path in self._root.glob("files/??/*"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                files.append((status.st_atime_ns, status.st_size, status.st_nlink == 1, path))
        excess = sum(size for _, size, _, _ in files) - self._limit
        for _, size, is_unused, path in sorted(files):
            if excess <= 0:
                return
            if is_unused:
                path.unlink(missing_ok=True)
                excess -= size

    def close(self) -> None:
        """Remove the folders of this process; the files stay. Without effect where nothing was opened."""
        with self._lock:
            if self._work is not None:
                shutil.rmtree(self._work, ignore_errors=True)
            if self._held is not None:
                os.close(self._held)
            self._work = self._held = None

    def open(self) -> None:
        """Make the directories, and remove what dead processes have left.

        Raises:
            Internal: the root cannot be written.
        """
        self._opened()

    def _opened(self) -> Path:
        with self._lock:
            if self._work is None:
                try:
                    self._work = self._new_work()
                except OSError as exc:
                    raise Internal(
                        f"cannot use '{self._root}' as the cache of model repositories: {exc.strerror}; see "
                        "--model-repository-cache-dir"
                    ) from None
            return self._work

    def _new_work(self) -> Path:
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        place = self._root / "work"
        place.mkdir(exist_ok=True)
        with _locked(self._root / "lock"):
            for left in place.iterdir():
                if _is_dead(left):
                    shutil.rmtree(left, ignore_errors=True)
            work = place / f"{os.getpid()}-{uuid.uuid4().hex}"
            work.mkdir()
            self._held = os.open(work / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._held, fcntl.LOCK_EX)
        for name in ("partial", "models"):
            (work / name).mkdir()
        return work

    def _stem(self, url: StoreUrl, item: StoredObject) -> Path:
        state = item.etag or str(item.modified)
        name = "\0".join([url.scheme, url.endpoint, url.account, url.bucket, item.key, state, str(item.size)])
        digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
        return self._root / "files" / digest[:2] / digest


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as exc:
        if exc.errno not in _NO_LINKS:
            raise
        shutil.copy2(source, target)


def _is_dead(work: Path) -> bool:
    """Whether nobody holds its lock: its process has ended, in whatever way."""
    try:
        descriptor = os.open(work / "lock", os.O_RDWR)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
