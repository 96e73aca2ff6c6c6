"""Memory size of a model: as its configuration states it, as its backend measures it, or else estimated from its files.

Consulted by the residence. The functions read files and processes, so they run in threads.
"""

from __future__ import annotations

import os
from pathlib import Path

from actors.model.servable import Servable
from backends.interface import ModelSource
from protocol.errors import InvalidArgument
from repository.model_config import ModelConfig

# The key of a configuration's `parameters`: bytes, of all instances of one version together.
PARAMETER = "memory_bytes"


def stated_bytes(config: ModelConfig) -> int | None:
    """The size in the configuration; None if it has none.

    Raises:
        InvalidArgument: it is no number of bytes.
    """
    text = config.parameter(PARAMETER)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidArgument(
            f"model '{config.name}': parameters['{PARAMETER}'] is to be a whole number of bytes, got '{text}'"
        )
    return int(text)


def estimated_bytes(model: Servable) -> int:
    """The size before a load: as stated, or that of its files once for each instance."""
    stated = stated_bytes(model.config)
    if stated is not None:
        return stated
    source = model.source
    return files_bytes(source.version_directory) * model.spec_count if isinstance(source, ModelSource) else 0


def measured_bytes(model: Servable) -> int:
    """The size after a load: as stated, or as its backend measures it, or as estimated."""
    stated = stated_bytes(model.config)
    told = sum(used.byte_size for used in model.memory_usage()) if stated is None else 0
    return told or estimated_bytes(model)


def files_bytes(directory: Path) -> int:
    """The size of all files below a directory; 0 where there is none."""
    total = 0
    for folder, _, names in os.walk(directory, followlinks=True):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total
