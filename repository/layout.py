"""The layout of a model repository: `<repository>/<model>/<version>/<file>`.

Flow: repository paths -> [layout] -> model directories, their versions, the versions that the policy selects.
Reads directories only, no file; of a repository in a store, its listing. Source: Triton's model repository
documentation.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from protocol.errors import InvalidArgument, NotFound
from repository.model_config import LatestPolicy, ModelVersionPolicy
from repository.model_folders import is_bare_model
from repository.stores.snapshot import Snapshot
from repository.stores.store_repository import StoreRepository

logger = logging.getLogger(__name__)

DUPLICATE_MODEL = "model appears in two or more repositories"
CONFIG_FILE = "config.pbtxt"
# Other configurations of the same model, for servers started with their names.
CONFIGS_DIRECTORY = "configs"

# Directories beside the versions that have a meaning of their own.
_RESERVED_DIRECTORIES = frozenset({"warmup", "initial_state", CONFIGS_DIRECTORY})
_NUMBER = re.compile(r"[0-9]+")
_LARGEST_VERSION = 2**63 - 1
_SEPARATOR = "::"

DEFAULT_VERSION_POLICY = ModelVersionPolicy(latest=LatestPolicy(num_versions=1))


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """Where a model lies. `name` is the directory's name, which the configuration must repeat or leave out.

    `is_flat`: it has no version directories; what lies in it is version 1. `remote`: it lies in a store, as a listing
    saw it, and nothing at `path` until it is downloaded. `own_name`: the directory's name where the model is served
    under another. `namespace` tells apart models of one name, where the server has namespaces.
    """

    name: str
    path: Path
    repository: Path
    is_flat: bool = False
    remote: Snapshot | None = field(default=None, compare=False)
    own_name: str = ""
    namespace: str = ""

    @property
    def identifier(self) -> str:
        return identifier(self.namespace, self.name)

    @property
    def config_file(self) -> Path:
        return self.path / CONFIG_FILE


# A directory of models, one model by itself, or a place in a store.
Repository: TypeAlias = Path | ModelDirectory | StoreRepository


def identifier(namespace: str, name: str) -> str:
    """A model among all of a server: its name, and where there are namespaces `<namespace>::<name>`."""
    return f"{namespace}{_SEPARATOR}{name}" if namespace else name


def split_identifier(text: str) -> tuple[str, str]:
    """Namespace, which may be empty, and name."""
    namespace, _, name = text.rpartition(_SEPARATOR)
    return namespace, name


@dataclass(frozen=True, slots=True)
class FoundModels:
    """The models of all repositories by name. A name in `duplicates` is not in `models`: none of it is served, for
    the reason `DUPLICATE_MODEL`."""

    models: Mapping[str, ModelDirectory] = field(default_factory=dict)
    duplicates: Mapping[str, tuple[ModelDirectory, ...]] = field(default_factory=dict)


def find_models(repositories: Sequence[Repository]) -> FoundModels:
    """Every subdirectory of a repository is a model, but for hidden ones; links to directories count.

    Raises:
        NotFound: a repository is no directory, or no bucket.
        ServerError: a store cannot be listed.
    """
    found: dict[str, list[ModelDirectory]] = {}
    for repository in dict.fromkeys(repositories):
        if isinstance(repository, ModelDirectory):
            found.setdefault(repository.name, []).append(repository)
            continue
        if isinstance(repository, StoreRepository):
            for name, snapshot in repository.models().items():
                if _is_model_name(name):
                    found.setdefault(name, []).append(_remote_model(repository, name, snapshot))
            continue
        for path in sorted(_entries(repository)):
            if _is_model(path):
                found.setdefault(path.name, []).append(_local_model(path, repository))
    return FoundModels(
        models={name: places[0] for name, places in found.items() if len(places) == 1},
        duplicates={name: tuple(places) for name, places in found.items() if len(places) > 1},
    )


def find_model(repositories: Sequence[Repository], name: str) -> FoundModels:
    """Look one model up by its directory name, without listing the repositories. Found in none: both maps are empty.

    Raises:
        InvalidArgument: the name could lead out of a repository.
        ServerError: a store cannot be listed.
    """
    check_model_name(name)
    found = (_model_in(repository, name) for repository in dict.fromkeys(repositories))
    places = tuple(place for place in found if place is not None)
    if len(places) > 1:
        return FoundModels(duplicates={name: places})
    return FoundModels(models={place.name: place for place in places})


def is_configuration(path: str) -> bool:
    """Whether a file, by its path below a model's directory, may be its configuration."""
    return path == CONFIG_FILE or path.startswith(f"{CONFIGS_DIRECTORY}/")


def check_model_name(name: str) -> None:
    """Refuse a name from a client that is empty or is more than the name of one directory.

    Raises:
        InvalidArgument: it is.
    """
    if not name:
        raise InvalidArgument("Model name cannot be empty. Please enter a valid name to deploy.")
    if name in (".", "..") or any(mark in name for mark in "/\\\0"):
        raise InvalidArgument(f"invalid model name '{name}', model name must not contain path traversal characters")


def version_directories(directory: ModelDirectory) -> tuple[int, ...]:
    """The versions that lie in a model's directory, lowest first; other directories are skipped with a warning.

    Raises:
        NotFound: the model's directory is gone.
    """
    if directory.is_flat:
        return (1,)
    versions: list[int] = []
    for name in _candidates(directory):
        if not _NUMBER.fullmatch(name) or int(name) > _LARGEST_VERSION:
            _warn_skipped(directory, name, "is no version number")
        elif not _is_version(name):
            _warn_skipped(directory, name, "has leading zeros")
        else:
            versions.append(int(name))
    return tuple(sorted(versions))


def first_version_directory(directory: ModelDirectory) -> Path | None:
    """The version directory whose name sorts first as text: the one that tells what kind of model this is.

    Raises:
        NotFound: the model's directory is gone.
    """
    if directory.is_flat:
        return directory.path
    names = [name for name in _candidates(directory) if _is_version(name)]
    return directory.path / min(names) if names else None


def select_versions(policy: ModelVersionPolicy | None, available: Collection[int], *, model: str) -> tuple[int, ...]:
    """The versions to serve, lowest first. No policy means the latest one.

    Raises:
        InvalidArgument: none of those available is selected.
    """
    if policy is None or policy == ModelVersionPolicy():
        policy = DEFAULT_VERSION_POLICY
    if policy.specific is not None:
        wanted = set(policy.specific.versions)
        for version in sorted(wanted - set(available)):
            logger.warning("version %d of model '%s' is in its version policy but not in its directory", version, model)
        selected = sorted(wanted & set(available))
    elif policy.latest is not None:
        selected = sorted(available, reverse=True)[: policy.latest.num_versions][::-1]
    else:
        selected = sorted(available)
    if not selected:
        raise InvalidArgument(f"at least one version must be available under the version policy of model '{model}'")
    return tuple(selected)


def _model_in(repository: Repository, name: str) -> ModelDirectory | None:
    if isinstance(repository, ModelDirectory):
        return repository if repository.name == name else None
    if isinstance(repository, StoreRepository):
        snapshot = repository.model(name) if _is_model_name(name) else None
        return _remote_model(repository, name, snapshot) if snapshot is not None else None
    path = repository / name
    return _local_model(path, repository) if _is_model(path) else None


def _local_model(path: Path, repository: Path) -> ModelDirectory:
    return ModelDirectory(path.name, path, repository, is_flat=is_bare_model(path))


def _remote_model(repository: StoreRepository, name: str, snapshot: Snapshot) -> ModelDirectory:
    place = Path(str(repository))
    return ModelDirectory(name, place / name, place, remote=snapshot)


def _is_model(path: Path) -> bool:
    return os.path.isdir(path) and _is_model_name(path.name)  # unlike Path.is_dir it never raises


def _is_model_name(name: str) -> bool:
    if name.startswith("."):
        return False
    if not name.isprintable():  # also those that are not UTF-8, which no answer could carry
        logger.warning("directory %r is skipped, its name is not printable text", name)
        return False
    return True


def _candidates(directory: ModelDirectory) -> list[str]:
    """The names of the subdirectories that may be versions."""
    if directory.remote is not None:
        return [name for name in directory.remote.subdirectories() if name not in _RESERVED_DIRECTORIES]
    return [
        path.name for path in _entries(directory.path) if path.name not in _RESERVED_DIRECTORIES and os.path.isdir(path)
    ]


def _is_version(name: str) -> bool:
    return bool(_NUMBER.fullmatch(name)) and name == str(int(name)) and int(name) <= _LARGEST_VERSION


def _entries(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except OSError as exc:
        raise NotFound(f"cannot list directory '{path}': {exc.strerror}") from None


def _warn_skipped(directory: ModelDirectory, name: str, why: str) -> None:
    logger.warning("model '%s': directory '%s' is skipped, its name %s", directory.name, name, why)
