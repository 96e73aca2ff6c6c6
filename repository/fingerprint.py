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
    seen: set[str] = set()
    for folder, subfolders, names in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen or (is_watched and folder != str(root) and _ENVIRONMENT_FILE in names):
            subfolders.clear()
            continue
        seen.add(real)
        subfolders[:] = [name for name in subfolders if name != _COMPILED and not (is_watched and _is_scratch(name))]
        if not names and not subfolders and folder != str(root):
            yield os.path.relpath(folder, root) + "/", 0, 0
        for name in names:
            if is_watched and _is_scratch(name):
                continue
            path = os.path.join(folder, name)
            try:
                status = os.stat(path)
            except OSError:
                continue
            yield os.path.relpath(path, root), status.st_mtime_ns, status.st_size


def _is_left_out(parts: Sequence[str], is_watched: bool) -> bool:
    return _COMPILED in parts[:-1] or (is_watched and any(map(_is_scratch, parts)))


def _is_scratch(name: str) -> bool:
    return name.startswith(".") or name.endswith("~")
