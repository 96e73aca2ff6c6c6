"""Sample of a model's contents: tells files apart that have one size and one time of change, as those of images whose
times are all set to the same. Little of each file is read, so that large ones cost no time."""

from __future__ import annotations

import hashlib
import stat
from contextlib import suppress
from pathlib import Path

from repository.fingerprint import Fingerprint
from repository.layout import ModelDirectory

# Of a file: so many parts at even distances, the first and the last among them. A file that is no larger than all of
# them is read whole.
_PARTS, _PART_BYTES = 64, 16 * 1024


def content_sample(directory: ModelDirectory, files: Fingerprint) -> bytes:
    """A digest of parts of these files, which are the directory's. Blocks.

    Files that differ in other parts only have the same: weights that were trained again differ everywhere. Of a
    directory in a store it is empty, since its fingerprint has digests of contents already. A file that cannot be read
    counts as one without contents.
    """
    if directory.remote is not None:
        return b""
    digest = hashlib.blake2b(digest_size=32)
    for name, _, size in files:
        if not name.endswith("/"):
            digest.update(_sample(directory.path / name, size))
    return digest.digest()


def _sample(path: Path, size: int) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    with suppress(OSError):
        if stat.S_ISREG(path.stat().st_mode):  # a pipe would keep its reader waiting
            with path.open("rb") as file:
                for start in _starts(size):
                    file.seek(start)
                    digest.update(file.read(_PART_BYTES))
    return digest.digest()


def _starts(size: int) -> list[int]:
    last = size - _PART_BYTES
    if size <= _PARTS * _PART_BYTES:
        return list(range(0, size, _PART_BYTES))
    return [number * last // (_PARTS - 1) for number in range(_PARTS)]
