"""Cache of converted models on disk: each is a folder whose name tells what it was made of.

    <root>/<content>-<versions>/  a converted model, whole, with `conversion.json` about it
    <root>/<content>.lock         locked by who converts, and by the process that does
    <root>/.work-<content>-…/     a conversion on its way, or what one that was killed has left
    <root>/digests/<path>.json    digests of files that have not changed since

<content> is a digest of the source's files and the conversion's options, <versions> one of the converting packages'
versions. A model appears by one rename. Everything here blocks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repository.model_folders import model_files

ABOUT = "conversion.json"
_WORK = ".work-"
_DIGESTS = "digests"
_CONTENT_LENGTH, _VERSIONS_LENGTH = 32, 8


@dataclass(frozen=True, slots=True)
class Entry:
    """A converted model. `used_at` is in seconds since the epoch."""

    folder: Path
    source: str
    byte_size: int
    used_at: float


class ConversionCache:
    """See above. Several servers may share a root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def key(self, folder: Path, options: Mapping[str, str]) -> str:
        """The content of a source, and the options: what all conversions of it are called by.

        Raises OSError.
        """
        return _digest([options, self._digests(folder)])[:_CONTENT_LENGTH]

    def find(self, key: str, versions: Mapping[str, str] | None) -> Path | None:
        """The model that these versions have made; any, the one used last, where they are not known."""
        if versions is not None:
            found = [self._place(key, versions)]
        else:
            found = sorted(self.root.glob(f"{key}-*"), key=_used_at, reverse=True)
        for folder in found:
            with contextlib.suppress(OSError):
                os.utime(folder / ABOUT)
                return folder
        return None

    def lock(self, key: str) -> int | None:
        """A descriptor that holds the right to convert until it, and every copy of it, is closed; None while another
        process or load has it. Raises OSError."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.root / f"{key}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return None
            raise
        return descriptor

    def begin(self, key: str) -> Path:
        """An empty folder to convert in, for who holds the lock; what others have left half-way is removed. Raises
        OSError."""
        for left in self.root.glob(f"{_WORK}{key}-*"):
            shutil.rmtree(left, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=f"{_WORK}{key}-", dir=self.root))

    def keep(self, key: str, versions: Mapping[str, str], made: Path, about: Mapping[str, Any]) -> Path:
        """Put a converted model in place, on disk to the last byte. Raises OSError."""
        (made / ABOUT).write_text(json.dumps(about, indent=1))
        for path in (*made.rglob("*"), made):
            _sync(path)
        place = self._place(key, versions)
        shutil.rmtree(place, ignore_errors=True)  # without its `conversion.json`, or it would have been found
        os.rename(made, place)
        _sync(self.root)
        return place

    def entries(self) -> list[Entry]:
        """All converted models, the one used last first."""
        found = []
        for about in self.root.glob(f"*/{ABOUT}"):
            with contextlib.suppress(OSError, ValueError):
                source = str(json.loads(about.read_text()).get("source", ""))
                size = sum(path.stat().st_size for path in about.parent.rglob("*"))
                found.append(Entry(about.parent, source, size, about.stat().st_mtime))
        return sorted(found, key=lambda entry: entry.used_at, reverse=True)

    def remove_unused(self, seconds: float) -> list[Entry]:
        """Remove what nobody has loaded for so long, and what conversions that were killed have left; returns the
        former. A server that has a model in memory keeps it."""
        for left in self.root.glob(f"{_WORK}*"):
            held = self.lock(left.name.removeprefix(_WORK).rpartition("-")[0])
            if held is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(held)
        removed = [entry for entry in self.entries() if entry.used_at <= time.time() - seconds]
        for entry in removed:
            (entry.folder / ABOUT).unlink(missing_ok=True)  # from here on nobody finds it
            shutil.rmtree(entry.folder, ignore_errors=True)
        return removed

    def _place(self, key: str, versions: Mapping[str, str]) -> Path:
        return self.root / f"{key}-{_digest(versions)[:_VERSIONS_LENGTH]}"

    def _digests(self, folder: Path) -> dict[str, str]:
        """The digest of each file that a conversion may read. One that has not changed is not read again."""
        memory = self.root / _DIGESTS / f"{_digest(str(folder.resolve()))[:_CONTENT_LENGTH]}.json"
        known = _read_object(memory)
        found = {path.name: [*_state(path)] for path in model_files(folder)}
        digests: dict[str, list[Any]] = {}
        for name, state in found.items():
            before = known.get(name)
            if isinstance(before, list) and before[:-1] == state:
                digests[name] = before
            else:
                digests[name] = [*state, _file_digest(folder / name)]
        if digests != known:
            memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_whole(memory, json.dumps(digests))
        return {name: entry[-1] for name, entry in digests.items()}


def default_root(environment: Mapping[str, str]) -> Path:
    """`trioton/converted` in the user's cache."""
    caches = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches, "trioton", "converted")


def states(folder: Path) -> list[tuple[str, tuple[int, ...]]]:
    """What changes when somebody writes to one of them. Raises OSError."""
    return [(path.name, _state(path)) for path in model_files(folder)]


def _state(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _read_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_whole(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with open(descriptor, "w") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _used_at(folder: Path) -> float:
    try:
        return (folder / ABOUT).stat().st_mtime
    except OSError:
        return 0.0
