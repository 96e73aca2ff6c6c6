"""Adapter folder: judges the path that a client gives for an adapter (LoRA) of a model, before anybody reads there.

A relative one begins at the version's folder and stays within the model's; an absolute one lies within a folder that
the operator has allowed. Symbolic links count as what they lead to, those among the adapter's files too. Folders within
it are not looked into: no engine here reads there, and what training leaves in them has no bounds.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from protocol.errors import InvalidArgument, NotFound

# An adapter has a handful of files.
_MOST_FILES = 256
_LONGEST_PATH = 4096


def adapter_folder(path: str, version: Path, model: Path, allowed: Sequence[Path]) -> Path:
    """The folder that a path names. Blocks.

    Raises:
        InvalidArgument: it lies, or a file of it, where none may.
        NotFound: there is no such folder.
    """
    if not path or "\0" in path or len(path) > _LONGEST_PATH:
        raise InvalidArgument(f"LoRA path {path[:256]!r} must have 1 to {_LONGEST_PATH} characters, none of them NUL")
    is_relative = not os.path.isabs(path)
    try:
        folder = Path(os.path.realpath(version / path))
        roots = [Path(os.path.realpath(each)) for each in ((version, model) if is_relative else allowed)]
        root = next((each for each in roots if folder.is_relative_to(each)), None)
        if root is None:
            where = "its model's folder" if is_relative else "a folder that --openai-lora-path allows"
            raise InvalidArgument(f"LoRA path '{path}' must be inside {where}")
        if not folder.is_dir():
            raise NotFound(f"No adapter found for '{path}': there is no such folder")
        _check_files(folder, root, path)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"LoRA path '{path}' cannot be read: {error}") from None
    return folder


def _check_files(folder: Path, root: Path, path: str) -> None:
    with os.scandir(folder) as entries:
        for count, entry in enumerate(entries):
            if count >= _MOST_FILES:
                raise InvalidArgument(f"LoRA path '{path}' has more than {_MOST_FILES} files")
            if not Path(os.path.realpath(entry.path)).is_relative_to(root):
                raise InvalidArgument(f"LoRA path '{path}': its file '{entry.name}' leads out of the folder")
            if not (entry.is_file() or entry.is_dir()):
                raise InvalidArgument(f"LoRA path '{path}': '{entry.name}' is neither a file nor a folder")
