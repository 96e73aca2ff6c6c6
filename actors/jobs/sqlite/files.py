"""Files beside the database of a job store, for requests and results that are too large for its rows. Blocks.

A file is whole on the disk before a row names it, is never changed, and goes after the row has. What a crash leaves
between is swept when the store is opened.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence, Set
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from protocol.messages import Buffer

# What is larger goes into a file.
LARGE = 64 << 10
_UNFINISHED = ".part"
# Files that are written together.
_OPEN_AT_ONCE = 32
_SECRET_BYTES = 32


class PayloadFiles:
    """The files of one store, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def write(self, parts: Sequence[Buffer]) -> str:
        """A new file; returns its name. Raises OSError, and leaves nothing."""
        name, file = self.begin()
        try:
            for part in parts:
                file.write(part)
            self.finish(name, file)
        except BaseException:
            file.close()
            self.discard(name)
            raise
        return name

    def write_all(self, payloads: Sequence[Sequence[Buffer]]) -> list[str]:
        """A new file of each, as `write`; many together take the disk less time."""
        names: list[str] = []
        try:
            for first in range(0, len(payloads), _OPEN_AT_ONCE):
                with ExitStack() as stack:
                    files = []
                    for parts in payloads[first : first + _OPEN_AT_ONCE]:
                        name, file = self.begin()
                        names.append(name)
                        files.append(stack.enter_context(file))
                        for part in parts:
                            file.write(part)
                        file.flush()
                    for file in files:
                        os.fsync(file.fileno())
            for name in names:
                self._unfinished(name).rename(self._folder / name)
            if names:
                _sync(self._folder)
        except BaseException:
            for name in names:
                self.discard(name)
            raise
        return names

    def begin(self) -> tuple[str, BinaryIO]:
        """A new file, to be written by the caller, and then finished or discarded."""
        name = secrets.token_hex(16)
        return name, self._unfinished(name).open("xb")

    def finish(self, name: str, file: BinaryIO) -> None:
        """All was written: have it on the disk."""
        with file:
            file.flush()
            os.fsync(file.fileno())
        self._unfinished(name).rename(self._folder / name)
        _sync(self._folder)

    def discard(self, name: str) -> None:
        self._unfinished(name).unlink(missing_ok=True)
        (self._folder / name).unlink(missing_ok=True)

    def read_piece(self, name: str, start: int, size: int) -> bytes:
        """Shorter at its end. Raises FileNotFoundError."""
        descriptor = os.open(self._folder / name, os.O_RDONLY)
        try:
            return os.pread(descriptor, size, start)
        finally:
            os.close(descriptor)

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError: its job was removed meanwhile."""
        return (self._folder / name).read_bytes()

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            (self._folder / name).unlink(missing_ok=True)

    def sweep(self, known: Set[str]) -> int:
        """Remove the files that no row names; returns how many there were."""
        stray = [entry.name for entry in os.scandir(self._folder) if entry.name not in known]
        self.remove(stray)
        return len(stray)

    def _unfinished(self, name: str) -> Path:
        return (self._folder / name).with_suffix(_UNFINISHED)


def lasting_secret(path: Path) -> bytes:
    """Random bytes in a file that only the server's user reads; made where there is none. Raises OSError."""
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        found = b""
    if len(found) >= _SECRET_BYTES:
        return found
    made = secrets.token_bytes(_SECRET_BYTES)
    unfinished = path.with_suffix(_UNFINISHED)
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(made)
        file.flush()
        os.fsync(descriptor)
    unfinished.rename(path)
    _sync(path.parent)
    return made


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
