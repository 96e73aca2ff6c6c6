"""The repositories of a server, looked at as they are now.

Flow: repository paths → [repositories] → model control and the repository watcher.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from protocol.errors import ServerError
from repository.fingerprint import Fingerprint, fingerprint
from repository.layout import FoundModels, ModelDirectory, Repository, find_model, find_models

logger = logging.getLogger(__name__)


class ModelFiles(NamedTuple):
    """A model as a look has found it: where it lies, which is more than one place for a name that several repositories
    have, and the files there."""

    places: tuple[ModelDirectory, ...]
    files: tuple[Fingerprint, ...]


class Repositories:
    """All methods that look at directories block."""

    def __init__(self, places: Iterable[Repository]) -> None:
        self._places = tuple(dict.fromkeys(places))

    def find_models(self) -> FoundModels:
        """Raises ServerError: a repository cannot be listed."""
        return find_models(self._places)

    def find_model(self, name: str) -> FoundModels:
        """Raises ServerError: no model can have this name, or a store cannot be listed."""
        return find_model(self._places, name)

    def look(self, before: Mapping[str, ModelFiles]) -> dict[str, ModelFiles]:
        """The files of all models that have any; of a repository that cannot be listed now, what was there `before`."""
        seen: dict[str, ModelFiles] = {}
        for place in self._places:
            for name, files in self._look_at(place, before).items():
                seen[name] = _joined(seen.get(name), files)
        return seen

    def _look_at(self, place: Repository, before: Mapping[str, ModelFiles]) -> dict[str, ModelFiles]:
        try:
            found = find_models((place,)).models
        except ServerError as error:
            logger.error("model repository '%s' is not polled: %s", place, error)
            return {name: kept for name, files in before.items() if (kept := _in_repository(files, place)).places}
        looks = {name: ModelFiles((each,), (fingerprint(each, is_watched=True),)) for name, each in found.items()}
        return {name: files for name, files in looks.items() if _has_files(files)}


def _in_repository(model: ModelFiles, place: Repository) -> ModelFiles:
    path = Path(str(place))
    here = [(each, files) for each, files in zip(model.places, model.files, strict=True) if each.repository == path]
    return ModelFiles(tuple(each for each, _ in here), tuple(files for _, files in here))


def _has_files(model: ModelFiles) -> bool:
    """Directories alone are no model yet."""
    return any(not name.endswith("/") for files in model.files for name, _, _ in files)


def _joined(one: ModelFiles | None, other: ModelFiles) -> ModelFiles:
    return other if one is None else ModelFiles(one.places + other.places, one.files + other.files)
