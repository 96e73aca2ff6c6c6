"""Tokenizer file: where a tokenizer was read from, and its bytes as they were then, by which it is known again."""

from __future__ import annotations

import os
import stat
from hashlib import sha256
from pathlib import Path

import msgspec


class FileChanged(Exception):
    """The file is not what it was, or not there."""


class TokenizerFile(msgspec.Struct, frozen=True):
    """Attributes:
    path: absolute.
    size: in bytes.
    digest: SHA-256 of the bytes.
    """

    path: str
    size: int
    digest: bytes

    @classmethod
    def of(cls, path: Path, data: bytes) -> TokenizerFile:
        """The file that these bytes were read from."""
        return cls(str(path.absolute()), len(data), sha256(data).digest())

    def read(self) -> bytes:
        """The same bytes again, in whatever process. Blocks for as long as the disk does, and for nothing else.

        Raises:
            FileChanged: they are others by now, or cannot be read.
        """
        try:
            with open(self.path, "rb", opener=_open_at_once) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_size != self.size:
                    raise FileChanged(f"'{self.path}' has changed since the model was loaded")
                data = file.read(self.size)
        except OSError as error:
            raise FileChanged(f"'{self.path}' cannot be read: {error.strerror}") from None
        if sha256(data).digest() != self.digest:
            raise FileChanged(f"'{self.path}' has changed since the model was loaded")
        return data


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe in its place would never be open
