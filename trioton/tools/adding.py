"""Adds a model to a repository atomically: staged in a hidden folder, checked as by a server, then moved into place.

What a running server sees is the repository before or after, never a half of it: the parts are made in a hidden folder
of the repository, where no server looks for models, and renamed. Whatever goes wrong, nothing is left.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import trio

from protocol.errors import Internal, InvalidArgument, ServerError
from repository.layout import CONFIG_FILE, ModelDirectory, check_model_name, find_models, version_directories
from repository.model_config import ModelConfig
from repository.readable_pbtxt import format_readable, without_defaults
from trioton.flags.fields import UsageError
from trioton.tools.flags import ToolFlags
from trioton.tools.layout_checks import REPLACED, STAGING_PREFIX
from trioton.tools.model_sources import GivenModel
from trioton.tools.prepared import PreparedModels, model_loader
from trioton.tools.swapping import swap

_NOT_COPIED = shutil.ignore_patterns("__pycache__", ".*", "*~")


@dataclass(frozen=True, slots=True)
class Added:
    """Where the model is now, which of its versions are new, and its configuration as a server has it."""

    directory: Path
    versions: tuple[int, ...]
    config: ModelConfig


async def add_model(repository: Path, given: GivenModel, flags: ToolFlags, *, replaces: bool) -> Added:
    """Put it there; a configuration is made where it has none.

    A model that is there already gets the new version. `replaces`: with that version replaced where it is there, or the
    whole model, if no version was named.

    Raises:
        UsageError: something is there already; the repository is no directory.
        ServerError: a server would not load it.
    """
    target = repository / given.name
    await trio.to_thread.run_sync(_check_target, repository, given, replaces)
    is_version = target.exists() and not replaces_model(given, target, replaces)
    with _staging(repository) as staging:
        staged = ModelDirectory(given.name, staging / given.name, staging)
        await trio.to_thread.run_sync(_stage, given, staged.path, target if is_version else None)
        try:
            config = await _judged(repository, staged, flags)
        except ServerError as error:  # where it would be, not where it is tried
            raise type(error)(error.message.replace(str(staged.path), str(target))) from None
        await trio.to_thread.run_sync(_write_config, given, staged, config, is_version)
        await trio.to_thread.run_sync(_put_in_place, given, staged.path, target, is_version)
    return Added(target, given.versions, config)


def replaces_model(given: GivenModel, target: Path, replaces: bool) -> bool:
    """Whether the whole model is replaced, and not one of its versions."""
    return replaces and (given.has_config or not given.is_single)


def _check_target(repository: Path, given: GivenModel, replaces: bool) -> None:
    try:
        check_model_name(given.name)
    except InvalidArgument as error:
        raise UsageError(f"--name: {error}") from None
    if given.name.startswith("."):
        raise UsageError(f"--name: '{given.name}' begins with a dot, and no server looks for models in such a folder")
    if repository.exists() and not repository.is_dir():
        raise UsageError(f"'{repository}' is no directory")
    target = repository / given.name
    if not target.exists() or replaces:
        return
    there = version_directories(ModelDirectory(given.name, target, repository))
    taken = [version for version in given.versions if (target / str(version)).exists()]
    if given.is_single and not taken and not given.has_config:
        return
    hint = "--force replaces it"
    if given.is_single and not given.has_config:
        hint = f"--version {max(there, default=0) + 1} adds a version, --force replaces the one that is there"
    shown = f" with version{'s' if len(there) > 1 else ''} {', '.join(map(str, there))}" if there else ""
    raise UsageError(f"model '{given.name}' is in the repository already{shown}; {hint}")


@contextmanager
def _staging(repository: Path) -> Iterator[Path]:
    repository.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=repository))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _stage(given: GivenModel, staged: Path, existing: Path | None) -> None:
    """Copy the files, and beside a new version what the model has besides its versions."""
    staged.mkdir()
    for entry in [] if existing is None else existing.iterdir():
        if not (entry.is_dir() and entry.name.isdigit()):
            _copy(entry, staged / entry.name)
    for place, source in given.files.items():
        _copy(source, staged / place)
    for place, text in given.texts.items():
        (staged / place).parent.mkdir(parents=True, exist_ok=True)
        (staged / place).write_text(text, encoding="utf-8")
    if not (staged / CONFIG_FILE).exists() and given.config != ModelConfig():
        (staged / CONFIG_FILE).write_text(format_readable(given.config), encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=_NOT_COPIED)
    else:
        shutil.copy2(source, target)


async def _judged(repository: Path, staged: ModelDirectory, flags: ToolFlags) -> ModelConfig:
    """The completed configuration. Raises ServerError where a server would not load the model."""
    loader = await model_loader(flags)
    others = (await trio.to_thread.run_sync(find_models, [repository])).models
    found = await PreparedModels(loader, {**others, staged.name: staged}).get(staged.name)
    config = found[-1].config
    if not config.is_ensemble:
        backend = await trio.to_thread.run_sync(loader.find_backend, staged, config)
        for model in found:
            await backend.check_model(loader.source(staged, config, model.version, backend))
    return config


def _write_config(given: GivenModel, staged: ModelDirectory, config: ModelConfig, is_version: bool) -> None:
    if not given.has_config and not is_version:
        if given.is_language_model:
            config = msgspec.structs.replace(given.config, backend=config.backend)
        text = format_readable(without_defaults(config, staged))
        (staged.path / CONFIG_FILE).write_text(text, encoding="utf-8")


def _put_in_place(given: GivenModel, staged: Path, target: Path, is_version: bool) -> None:
    if is_version:
        (version,) = given.versions
        _replace(staged / str(version), target / str(version), staged.parent)
    else:
        _replace(staged, target, staged.parent)


def _replace(new: Path, target: Path, staging: Path) -> None:
    """Rename; what is there already changes places with the new one, or is kept aside until that is there."""
    old = staging / REPLACED
    try:
        if target.exists():
            if swap(new, target):
                return
            os.rename(target, old)
        os.rename(new, target)
    except OSError as error:
        if old.exists() and not target.exists():
            os.rename(old, target)
        raise Internal(f"'{target}' cannot be put in place: {error.strerror}") from None
