"""Step: the inputs that a source tells, and the files beside it that it has read."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from trioton.convert.programs.loading import load_source, source_of

# A source that reads more is watched by its own file and these.
_MOST_FILES, _MOST_OPENED = 1000, 20_000
_OURS = [Path(__file__).parent.parent.parent.parent / name for name in ("actors", "backends", "protocol", "trioton")]
_READING = (None, "r", "rb", "rt")


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    source = source_of(arguments)
    opened: set[str] = set()

    def hook(event: str, details: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(details[0], str) and details[1] in _READING and len(opened) < _MOST_OPENED:
            opened.add(details[0])

    sys.addaudithook(hook)
    loaded = load_source(source)
    inputs = loaded.inputs()
    # What is imported of a cache was opened there.
    opened |= {file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    files = _beside(Path(source.path), opened)
    return {
        "inputs": msgspec.to_builtins(tuple(inputs)),
        "parameters": dict(loaded.parameters),
        "files": files[:_MOST_FILES],
    }


def _beside(source: Path, opened: set[str]) -> list[str]:
    """Files in the source's own folder, whose change would change the source."""
    if source.is_dir():
        return []  # it is watched as a whole
    found = {Path(os.path.abspath(file)) for file in opened}
    # A home directory may hold all of these.
    others = [Path(place) for place in (os.getcwd(), sys.prefix, sys.base_prefix, *map(str, _OURS))]
    return sorted(
        str(path)
        for path in found
        if path.is_relative_to(source.parent)
        and path != source
        and path.is_file()
        and not {"__pycache__", "site-packages"} & {*path.parts}
        and not any(path.is_relative_to(other) for other in others)
    )
