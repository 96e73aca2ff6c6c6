"""Model files given by a load call instead of a repository, in a temporary directory."""

from __future__ import annotations

import fcntl
import os
import posixpath
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from protocol.errors import Internal, InvalidArgument
from protocol.messages import Buffer
from repository.held_directory import HeldDirectory
from repository.layout import ModelDirectory

_PREFIX = "trioton-override-"
# Of one path: models' files are in few, and to make them takes a step each.
_MOST_DIRECTORIES = 64


class OverrideFiles(HeldDirectory):
    """The directory `<temporary>/<model>`, written when made, which blocks."""

    def __init__(self, model: str, files: Mapping[str, Buffer]) -> None:
        """`files` maps paths below the model's directory (`<version>/<name>`) to contents.

        Raises:
            InvalidArgument: a path leads out of the directory, or two cannot stand beside each other.
        """
        paths = {path: _normalised(path) for path in files}
        try:
            root, lock = _new_root()
        except OSError as exc:
            raise Internal(f"there is no place for the override files of model '{model}': {exc}") from None

        def remove() -> None:
            shutil.rmtree(root, ignore_errors=True)
            os.close(lock)

        super().__init__(ModelDirectory(model, root / model, root), remove)
        try:
            for path, contents in files.items():
                target = self.directory.path / paths[path]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(contents)
        except (OSError, ValueError) as exc:
            remove()
            raise InvalidArgument(f"failed to write the override files of model '{model}': {exc}") from None


def remove_abandoned() -> None:
    """Remove what servers have left that were killed; blocks. Those that live hold a lock on theirs."""
    try:
        place = Path(tempfile.gettempdir())
    except FileNotFoundError:  # nothing can be written to: nothing was
        return
    for path in place.glob(f"{_PREFIX}*"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # gone, or somebody else's
            continue
        try:
            if os.fstat(descriptor).st_uid == os.getuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)


def _new_root() -> tuple[Path, int]:
    """An empty directory and the lock that this process holds on it. It has its name only when it is locked."""
    made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
    descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return made.rename(made.with_name(made.name[1:])), descriptor


def _normalised(path: str) -> str:
    """Below the model's directory, which is the root of a path that begins with a slash."""
    normal = posixpath.normpath(path.lstrip("/"))
    if "\0" in path or normal in (".", "..") or normal.startswith("../"):
        raise InvalidArgument(
            f"Invalid file parameter 'file:{path}' with normalized path '{normal}' must stay within model directory."
        )
    if (count := normal.count("/")) > _MOST_DIRECTORIES:
        raise InvalidArgument(
            f"Invalid file parameter 'file:{path[:100]}…': expected at most {_MOST_DIRECTORIES} directories, got "
            f"{count}"
        )
    return normal
