"""Fingerprint of a model's files: tells whether they have changed since it was loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from repository.layout import ModelDirectory

# Every file below the model's directory with its time of change in nanoseconds (in a store, a digest of its ETag) and
# its size in bytes; a directory with nothing in it, as the version of an ensemble, ends in a slash and has neither.
Fingerprint: TypeAlias = tuple[tuple[str, int, int], ...]

# Written by whoever imports a model's files, its own worker included.
_COMPILED = "__pycache__"
# What makes a directory a virtual environment.
_ENVIRONMENT_FILE = "pyvenv.cfg"


def fingerprint(directory: ModelDirectory, *, is_watched: bool = False) -> Fingerprint:
    """Looks at every file's metadata and at no content. A file that vanishes meanwhile counts as absent; links are
    followed, compiled Python files left out.

    Args:
        is_watched: leave out also what a person at work has lying around: hidden files and directories (editors' and
            version control's), backups (`name~`), and virtual environments.
    """
    if directory.remote is not None:
        entries = directory.remote.entries()
        return tuple(sorted(entry for entry in entries if not _is_left_out(entry[0].split("/"), is_watched)))
    return tuple(sorted(_files(directory.path, is_watched)))


def _files(root: Path, is_watched: bool) -> Iterator[tuple[str, int, int]]:
    """A poll does this for every model: one look at each folder's list, and one `stat` for each file and folder."""
    seen: set[tuple[int, int]] = set()
    folders = [(str(root), "")]
    while folders:
        folder, prefix = folders.pop()
        try:
            status = os.stat(folder)
            with os.scandir(folder) as listing:
                entries = list(listing)
        except OSError:
            continue
        subfolders = [entry for entry in entries if _is_directory(entry)]
        names = {entry.name for entry in entries}.difference(entry.name for entry in subfolders)
        if (status.st_dev, status.st_ino) in seen or (is_watched and prefix and _ENVIRONMENT_FILE in names):
            continue
        seen.add((status.st_dev, status.st_ino))
        if is_watched:
            subfolders = [entry for entry in subfolders if not _is_scratch(entry.name)]
        kept = [entry.name for entry in subfolders if entry.name != _COMPILED]
        if not names and not kept and prefix:
            yield prefix, 0, 0
        folders += [(f"{folder}/{name}", f"{prefix}{name}/") for name in reversed(kept)]
        for entry in entries:
            if entry.name not in names or (is_watched and _is_scratch(entry.name)):
                continue
            try:
                status = entry.stat()
            except OSError:
                continue
            yield prefix + entry.name, status.st_mtime_ns, status.st_size


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


def _is_left_out(parts: Sequence[str], is_watched: bool) -> bool:
    return _COMPILED in parts[:-1] or (is_watched and any(map(_is_scratch, parts)))


def _is_scratch(name: str) -> bool:
    return name.startswith(".") or name.endswith("~")
