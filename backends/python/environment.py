"""Which interpreter runs a model: the server's own, or that of the environment it brings (EXECUTION_ENV_PATH)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from backends.interface import ModelSource
from protocol.errors import InvalidArgument, Unsupported

PARAMETER = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"


@dataclass(frozen=True, slots=True)
class Environment:
    """`variables` is the whole environment of the worker's process."""

    interpreter: str
    variables: Mapping[str, str]


def find_environment(source: ModelSource) -> Environment:
    """The environment that the model's configuration asks for.

    The server's own interpreter gets its variables as they are, another one those of an activated environment. Neither
    runs isolated (`-I`): models count on PYTHONPATH, and the loader orders `sys.path` itself.

    Raises:
        InvalidArgument: there is no such path, or no interpreter in it.
        Unsupported: the path is no directory: packed environments are not unpacked yet.
    """
    given = source.config.parameter(PARAMETER)
    if not given:
        return Environment(sys.executable, dict(os.environ))
    if given.startswith(_MODEL_DIRECTORY):
        given = f"{source.model_directory}{given.removeprefix(_MODEL_DIRECTORY)}"
    try:
        path = Path(given).resolve(strict=True)
    except OSError:
        raise InvalidArgument(f"model '{source.name}': Failed to get the canonical path for {given}.") from None
    if not path.is_dir():
        raise Unsupported(
            f"model '{source.name}': {PARAMETER} names '{given}', which is no directory; packed environments are not "
            "supported yet: unpack it and name the directory"
        )
    interpreter = path / "bin" / "python"
    if not os.access(interpreter, os.X_OK):
        raise InvalidArgument(
            f"model '{source.name}': {PARAMETER} names '{given}', but '{interpreter}' is no program that can be run"
        )
    return Environment(str(interpreter), _activated(path))


def _activated(path: Path) -> dict[str, str]:
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONHOME"}
    variables["VIRTUAL_ENV"] = str(path)
    variables["PATH"] = f"{path / 'bin'}{os.pathsep}{variables.get('PATH', os.defpath)}"
    return variables
