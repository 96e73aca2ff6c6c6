"""Label files of the classification extension: one class name per line."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.errors import InvalidArgument
from repository.layout import ModelDirectory
from repository.model_config import ModelConfig


def read_labels(directory: ModelDirectory, config: ModelConfig) -> Mapping[str, tuple[str, ...]]:
    """The labels of every output that names a file in the model's directory.

    Raises:
        InvalidArgument: a file cannot be read as text.
    """
    return {
        output.name: _read(directory, config, output.name, output.label_filename)
        for output in config.output
        if output.label_filename
    }


def _read(directory: ModelDirectory, config: ModelConfig, output: str, filename: str) -> tuple[str, ...]:
    path = directory.path / filename
    try:
        return tuple(line.rstrip() for line in path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidArgument(
            f"failed to read label file '{path}' for output '{output}' in model '{config.name}': {exc}"
        ) from None
