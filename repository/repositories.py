"""The model repositories of one server: lists their models; repositories can be added and removed at run time.

Flow: repository paths → [repositories] → model control and the repository watcher.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from protocol.errors import AlreadyExists, InvalidArgument, NotFound, ServerError
from repository.fingerprint import Fingerprint, fingerprint
from repository.layout import (
    FoundModels,
    ModelDirectory,
    Repository,
    check_model_name,
    find_model,
    find_models,
    identifier,
    split_identifier,
)

logger = logging.getLogger(__name__)


class ModelFiles(NamedTuple):
    """A model as a look has found it: where it lies, which is more than one place for a name that several repositories
    have, and the files there."""

    places: tuple[ModelDirectory, ...]
    files: tuple[Fingerprint, ...]


@dataclass(frozen=True, slots=True)
class Registered:
    """One repository. `names` are those of its model directories that are served under another name, with that
    name."""

    place: Repository
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return str(self.place.path if isinstance(self.place, ModelDirectory) else self.place)

    @property
    def namespace(self) -> str:
        return str(self.place.repository) if isinstance(self.place, ModelDirectory) else self.path


class Repositories:
    """Models are known by their identifiers: with `is_namespaced` a model of one repository is another than that of the
    same name in another repository. Methods that look at directories block, and may be
    left to themselves by a caller that does not wait for their end."""

    def __init__(
        self,
        places: Iterable[Repository],
        *,
        is_namespaced: bool = False,
        open_place: Callable[[str], Repository] = Path,
    ) -> None:
        """`open_place` makes a repository of the text by which one is registered, and raises ValueError for wrong
        ones."""
        self._open_place = open_place
        self.registered = tuple(Registered(place) for place in dict.fromkeys(places))
        self.is_namespaced = is_namespaced

    def find_models(self) -> FoundModels:
        """The models of the repositories that can be listed now; the log names the others."""
        found: list[ModelDirectory] = []
        for each in self.registered:
            try:
                found += self._models_of(each)
            except ServerError as error:
                logger.error("the models of model repository '%s' are not known: %s", each.path, error)
        return _found(found)

    def find_model(self, name: str) -> FoundModels:
        """By identifier, or with `is_namespaced` also by a name alone. One that several have is in `duplicates`.

        Raises:
            InvalidArgument: no model can have this name.
            ServerError: it is in none that can be listed, and there is one that cannot.
        """
        namespace, plain = split_identifier(name) if self.is_namespaced else ("", name)
        check_model_name(plain)
        found: list[ModelDirectory] = []
        failure: ServerError | None = None
        for each in self.registered:
            if namespace and each.namespace != namespace:
                continue
            try:
                found += self._places_of(each, plain)
            except ServerError as error:  # the model may lie in another
                failure = error
        if failure is not None and not found:
            raise failure
        found = _without_empty(found)
        if len(found) > 1:
            return FoundModels(duplicates={name: tuple(found)})
        return _found(found)

    def resolve(self, name: str, namespace: str) -> str:
        """The identifier of a model that one in a namespace calls by this name: one of its own namespace if there is
        one, else the only one that there is; the name as it is if there is none, or more than one."""
        if not self.is_namespaced:
            return name
        if namespace and identifier(namespace, name) in self.find_model(identifier(namespace, name)).models:
            return identifier(namespace, name)
        return next(iter(self.find_model(name).models), name)

    def register(self, path: str, names: Mapping[str, str]) -> None:
        """`names` maps names of directories to those that their models are to be served under.

        Raises:
            InvalidArgument: there is no such repository, or a name cannot be.
            AlreadyExists: it is registered, or a name is taken by another mapping.
        """
        place = self._opened(path)
        for name in (*names, *names.values()):
            check_model_name(name)
        if self._find(path) is not None or place in [each.place for each in self.registered]:
            raise AlreadyExists(f"model repository '{path}' has already been registered")
        taken = [served for each in self.registered for served in each.names.values()]
        for served in names.values():
            if served in taken:
                raise AlreadyExists(f"failed to register '{served}', there is a conflicting mapping for '{served}'")
            taken.append(served)
        self.registered = (*self.registered, Registered(place, dict(names)))
        logger.info("Model repository registered: %s", path)

    def _opened(self, path: str) -> Repository:
        try:
            if not path:
                raise NotFound("no path")
            place = self._open_place(path)
            find_models((place,))
        except NotFound:
            raise InvalidArgument(f"failed to register '{path}', repository not found") from None
        except (ValueError, ServerError) as error:
            raise InvalidArgument(f"failed to register '{path}', {error}") from None
        return place

    def unregister(self, path: str) -> None:
        """Its models are found no more; what serves is another matter.

        Raises:
            InvalidArgument: it is not registered.
        """
        found = self._find(path)
        if found is None:
            raise InvalidArgument(f"failed to unregister '{path}', repository not found")
        self.registered = tuple(each for each in self.registered if each is not found)
        logger.info("Model repository unregistered: %s", path)

    def look(self, before: Mapping[str, ModelFiles]) -> dict[str, ModelFiles]:
        """The files of all models that have any; of a repository that cannot be listed now, what was there `before`."""
        seen: dict[str, ModelFiles] = {}
        for each in self.registered:
            for name, files in self._look_at(each, before).items():
                seen[name] = _joined(seen.get(name), files)
        return seen

    def _look_at(self, each: Registered, before: Mapping[str, ModelFiles]) -> dict[str, ModelFiles]:
        try:
            found = self._models_of(each)
        except ServerError as error:
            logger.error("model repository '%s' is not polled: %s", each.path, error)
            return {name: kept for name, files in before.items() if (kept := _in_repository(files, each)).places}
        looks = {model.identifier: ModelFiles((model,), (fingerprint(model, is_watched=True),)) for model in found}
        return {name: files for name, files in looks.items() if _has_files(files)}

    def _models_of(self, each: Registered) -> list[ModelDirectory]:
        return [self._served(each, model) for model in find_models((each.place,)).models.values()]

    def _places_of(self, each: Registered, name: str) -> list[ModelDirectory]:
        return [
            self._served(each, model)
            for own_name in _own_names(each, name)
            for model in find_model((each.place,), own_name).models.values()
        ]

    def _served(self, each: Registered, model: ModelDirectory) -> ModelDirectory:
        """The model under its name and in its namespace."""
        if model.name in each.names:
            model = replace(model, name=each.names[model.name], own_name=model.name)
        return replace(model, namespace=each.namespace) if self.is_namespaced else model

    def _find(self, path: str) -> Registered | None:
        """By path, however it is written."""
        wanted = os.path.realpath(path)
        return next((each for each in self.registered if os.path.realpath(each.path) == wanted), None)


def _found(models: Iterable[ModelDirectory]) -> FoundModels:
    found: defaultdict[str, list[ModelDirectory]] = defaultdict(list)
    for model in models:
        found[model.identifier].append(model)
    found.update((name, _without_empty(places)) for name, places in list(found.items()))
    return FoundModels(
        models={name: places[0] for name, places in found.items() if len(places) == 1},
        duplicates={name: tuple(places) for name, places in found.items() if len(places) > 1},
    )


def _without_empty(places: list[ModelDirectory]) -> list[ModelDirectory]:
    """Of several directories of one name those that have files, if any has: empty ones are no conflict."""
    if len(places) < 2:
        return places
    return [place for place in places if _has_files(ModelFiles((place,), (fingerprint(place),)))] or places


def _own_names(repository: Registered, served: str) -> list[str]:
    """The directories that a repository may have for a name."""
    mapped = [own_name for own_name, name in repository.names.items() if name == served]
    return mapped if served in repository.names else [*mapped, served]


def _in_repository(model: ModelFiles, repository: Registered) -> ModelFiles:
    here = [
        (each, files)
        for each, files in zip(model.places, model.files, strict=True)
        if str(each.repository) == str(Path(repository.path))
    ]
    return ModelFiles(tuple(each for each, _ in here), tuple(files for _, files in here))


def _has_files(model: ModelFiles) -> bool:
    """Directories alone are no model yet."""
    return any(not name.endswith("/") for files in model.files for name, _, _ in files)


def _joined(one: ModelFiles | None, other: ModelFiles) -> ModelFiles:
    return other if one is None else ModelFiles(one.places + other.places, one.files + other.files)
