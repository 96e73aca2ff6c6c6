"""Execution environment of a model: EXECUTION_ENV_PATH, `ENV:<name>` variables, WORKING_DIRECTORY."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from backends.interface import ModelSource
from backends.parameters import parse_int
from protocol.errors import InvalidArgument

if TYPE_CHECKING:
    from backends.python.environments.packed_environment import EnvironmentCache, Hold

PARAMETER = "EXECUTION_ENV_PATH"
WORKING_DIRECTORY = "WORKING_DIRECTORY"
# In front of the name of an environment variable.
VARIABLE_PREFIX = "ENV:"

_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CACHE_DIRECTORY = "env-cache-directory"
_CACHE_BYTE_SIZE = "env-cache-byte-size"
_DEFAULT_CACHE_BYTE_SIZE = 32 << 30


@dataclass(frozen=True, slots=True)
class Environment:
    """`variables` is the whole environment of the worker's process, which inherits `hold`."""

    interpreter: str
    variables: Mapping[str, str]
    working_directory: str | None = None
    hold: Hold | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        return () if self.hold is None else (self.hold.descriptor,)


def find_environment(source: ModelSource, bundled: Path | None = None) -> Environment:
    """The environment that the model's configuration asks for, else that of its backend (`bundled`), unpacked. Blocks.

    The server's own interpreter gets its variables as they are, another one those of an activated environment; those of
    the configuration come on top. Neither runs isolated (`-I`): models count on PYTHONPATH, and the loader orders
    `sys.path` itself.

    Raises:
        InvalidArgument: there is no such path, or no interpreter in it; a variable or the working directory cannot be.
        Internal: an archive cannot be unpacked where it is to be.
    """
    working_directory = _working_directory(source)
    path, hold = _root(source, bundled)
    if path is None:
        return Environment(sys.executable, {**os.environ, **_own_variables(source)}, working_directory)
    interpreter = path / "bin" / "python"
    if not os.access(interpreter, os.X_OK):
        named = source.config.parameter(PARAMETER) or bundled
        raise InvalidArgument(
            f"model '{source.name}': {PARAMETER} names '{named}', but '{interpreter}' is no program that can be run"
        )
    variables = {**_activated(path), **_own_variables(source)}
    return Environment(str(interpreter), variables, working_directory, hold)


def _root(source: ModelSource, bundled: Path | None) -> tuple[Path | None, Hold | None]:
    """The folder of the packed environment of the model, or of its backend, if there is one."""
    given = source.config.parameter(PARAMETER) or str(bundled or "")
    if not given:
        return None, None
    given = _with_model_directory(source, given)
    try:
        path = Path(given).resolve(strict=True)
    except OSError:
        raise InvalidArgument(f"model '{source.name}': Failed to get the canonical path for {given}.") from None
    if path.is_dir():
        return path, None
    try:
        return environment_cache(source).unpacked(path)
    except InvalidArgument as error:
        raise InvalidArgument(f"model '{source.name}': {PARAMETER}: {error}") from None


def environment_cache(source: ModelSource) -> EnvironmentCache:
    """Where archives are unpacked (backend settings `env-cache-directory` and `env-cache-byte-size`)."""
    place = f"model '{source.name}': backend setting '{_CACHE_BYTE_SIZE}'"
    limit = parse_int(source.settings.get(_CACHE_BYTE_SIZE, str(_DEFAULT_CACHE_BYTE_SIZE)), place=place)
    if limit < 1:
        raise InvalidArgument(f"{place} must be at least 1, got {limit}")
    directory = source.settings.get(_CACHE_DIRECTORY)
    if not directory:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        directory = str(Path(caches, "trioton", "environments"))
    from backends.python.environments.packed_environment import EnvironmentCache

    return EnvironmentCache(Path(directory).absolute(), limit)


def _activated(path: Path) -> dict[str, str]:
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONHOME"}
    variables["CONDA_PREFIX" if (path / "conda-meta").is_dir() else "VIRTUAL_ENV"] = str(path)
    variables["PATH"] = f"{path / 'bin'}{os.pathsep}{variables.get('PATH', os.defpath)}"
    return variables


def _own_variables(source: ModelSource) -> dict[str, str]:
    """What the configuration's `ENV:<name>` parameters set."""
    variables = {}
    for key, value in source.config.parameters.items():
        if not key.startswith(VARIABLE_PREFIX):
            continue
        name = key.removeprefix(VARIABLE_PREFIX)
        if _VARIABLE_NAME.fullmatch(name) is None:
            raise InvalidArgument(
                f"model '{source.name}': parameter '{key}' names no environment variable; expected "
                f"'{VARIABLE_PREFIX}' and a name of letters, digits and _ that begins with no digit"
            )
        variables[name] = _with_model_directory(source, value.string_value)
    return variables


def _working_directory(source: ModelSource) -> str | None:
    given = source.config.parameter(WORKING_DIRECTORY)
    if not given:
        return None
    path = source.model_directory.absolute() / _with_model_directory(source, given)
    if not path.is_dir():
        raise InvalidArgument(f"model '{source.name}': {WORKING_DIRECTORY} names '{path}', which is no directory")
    return str(path)


def _with_model_directory(source: ModelSource, given: str) -> str:
    if not given.startswith(_MODEL_DIRECTORY):
        return given
    return f"{source.model_directory.absolute()}{given.removeprefix(_MODEL_DIRECTORY)}"
