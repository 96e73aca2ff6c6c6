"""Whether a model's files have changed since it was loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from repository.layout import ModelDirectory

# Every file below the model's directory with its time of change in nanoseconds and its size in bytes.
Fingerprint: TypeAlias = tuple[tuple[str, int, int], ...]


def fingerprint(directory: ModelDirectory) -> Fingerprint:
    """Looks at every file's metadata and at no content. A file that vanishes meanwhile counts as absent."""
    return tuple(sorted(_files(directory.path)))


def _files(root: Path) -> Iterator[tuple[str, int, int]]:
    for path in root.rglob("*"):
        try:
            status = path.stat()
        except OSError:
            continue
        if path.is_file():
            yield str(path.relative_to(root)), status.st_mtime_ns, status.st_size
