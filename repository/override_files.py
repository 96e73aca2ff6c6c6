"""A model given by the files of a load call instead of a repository: a directory made of them, while it is needed."""

from __future__ import annotations

import posixpath
import tempfile
from collections.abc import Mapping
from pathlib import Path

from protocol.errors import InvalidArgument
from repository.held_directory import HeldDirectory
from repository.layout import ModelDirectory


class OverrideFiles(HeldDirectory):
    """The directory `<temporary>/<model>`, written when made, which blocks."""

    def __init__(self, model: str, files: Mapping[str, bytes]) -> None:
        """`files` maps paths below the model's directory (`<version>/<name>`) to contents.

        Raises:
            InvalidArgument: a path leads out of the directory, or two cannot stand beside each other.
        """
        paths = {path: _normalised(path) for path in files}
        temporary = tempfile.TemporaryDirectory(prefix="trioton-override-")
        root = Path(temporary.name)
        super().__init__(ModelDirectory(model, root / model, root), temporary.cleanup)
        try:
            for path, contents in files.items():
                target = self.directory.path / paths[path]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(contents)
        except (OSError, ValueError) as exc:
            temporary.cleanup()
            raise InvalidArgument(f"failed to write the override files of model '{model}': {exc}") from None


def _normalised(path: str) -> str:
    normal = posixpath.normpath(path)
    if "\0" in path or posixpath.isabs(normal) or normal in (".", "..") or normal.startswith("../"):
        raise InvalidArgument(
            f"Invalid file parameter 'file:{path}' with normalized path '{normal}' must stay within model directory."
        )
    return normal
