"""Digests of files and folders, by which a provenance names what was read."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest(path: Path) -> str:
    """SHA-256 of a file; of a folder, that of the names and digests of its files. Raises OSError."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    whole = hashlib.sha256()
    for each in sorted(path.rglob("*")):
        if each.is_file():
            whole.update(f"{each.relative_to(path).as_posix()}\0{digest(each)}\n".encode())
    return whole.hexdigest()
