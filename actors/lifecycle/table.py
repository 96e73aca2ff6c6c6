"""Model table: the registry of models and versions with their states (Triton's repository index), and the look-ups in
it.

Plain state without I/O, owned by the model manager, which writes it between two checkpoints; the core reads it at any
time.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from actors.model.servable import Servable
from protocol.core import ModelIndex
from protocol.errors import InvalidArgument, NotFound, Unavailable, shown_name
from protocol.messages import LATEST_VERSION
from repository.changes import LoadedFrom
from repository.held_directory import HeldDirectory
from repository.layout import split_identifier

# The reason in the index after an unload that was asked for.
UNLOADED = "unloaded"
# The one after an unload for want of memory.
EVICTED = "unloaded for the memory budget; the next request loads it again"
DELIBERATE = (UNLOADED, EVICTED)
# How many models are remembered that serve no more and that no repository is known to have.
KEPT_PASSING = 100


class ModelState(enum.Enum):
    """The states of Triton's repository index."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


_READY = ModelState.READY  # to look it up in an enumeration takes long before Python 3.12


@dataclass(eq=False, slots=True)
class VersionEntry:
    """One version. `model` serves while the state is READY, and finishes its requests while it is UNLOADING.
    `files` are those that the load call brought or that were downloaded, needed as long as an instance may be started
    again. `needs` are the models that it calls: those of an ensemble's steps or of a traffic split."""

    version: int
    model: Servable | None
    files: HeldDirectory | None = None
    needs: tuple[str, ...] = ()
    state: ModelState = ModelState.LOADING
    reason: str = ""
    load_seconds: float = 0.0
    # It takes no more requests; it is gone.
    leaving: trio.Event = field(default_factory=trio.Event)
    ended: trio.Event = field(default_factory=trio.Event)


@dataclass(eq=False, slots=True)
class ModelEntry:
    """One model. `name` is its identifier. `lock` serialises its loads and unloads; `failure` is why the last load gave
    no version at all, and `reload_failure` why it left those serving that did before. `needs` are the models that the
    last load needed, and `needed_names` the names by which its configuration calls those that have others.
    `is_explicit`: the model was loaded by its own name, not only for an ensemble that needs it. `is_overridden`: the
    load call has given configuration or files. `evicted` are the versions that the memory budget has unloaded, as they
    were: they answer all that needs no instance, and a request has them loaded anew (`actors.lifecycle.residence`).
    `is_passing`: no repository is known to have it; `loads_under_way` counts the loads that will write to the entry."""

    name: str
    lock: trio.Lock = field(default_factory=trio.Lock)
    versions: dict[int, VersionEntry] = field(default_factory=dict)
    failure: str = ""
    reload_failure: str = ""
    needs: tuple[str, ...] = ()
    needed_names: Mapping[str, str] = field(default_factory=dict)
    loaded_from: LoadedFrom | None = None
    is_explicit: bool = False
    is_overridden: bool = False
    evicted: dict[int, Servable] = field(default_factory=dict)
    is_passing: bool = False
    loads_under_way: int = 0

    @property
    def can_serve(self) -> bool:
        """Whether a request would be answered, perhaps after a load."""
        return bool(self.evicted or self.ready_versions)

    @property
    def models(self) -> list[Servable]:
        """The models that serve, by version."""
        found = (self.versions[version].model for version in self.ready_versions)
        return [model for model in found if model is not None]

    @property
    def serving(self) -> list[Servable]:
        """The models that serve, or would after a load on demand, by version."""
        return self.models or [model for _, model in sorted(self.evicted.items())]

    @property
    def ready_versions(self) -> tuple[int, ...]:
        return tuple(sorted(v.version for v in self.versions.values() if v.state is ModelState.READY))

    def latest(self) -> Servable | None:
        """The ready one with the highest number. Asked for each request, for which a property takes longer."""
        found, highest = None, -1
        for version in self.versions.values():
            if version.version > highest and version.state is _READY:
                found, highest = version.model, version.version
        return found

    @property
    def reason(self) -> str:
        """Why no version serves, as far as that is known."""
        return self.failure or "".join(
            f"version {entry.version} is at {entry.state.value} state: {entry.reason};"
            for entry in self.versions.values()
        )

    def is_as_asked(self) -> bool:
        """Strict readiness: every version serves with all its instances, or was unloaded or put to sleep on purpose."""
        if self.failure:
            return False
        return all(
            (entry.model is not None and (entry.model.is_ready or entry.model.sleep_level > 0))
            if entry.state is ModelState.READY
            else entry.reason in DELIBERATE or entry.state is ModelState.UNLOADING
            for entry in self.versions.values()
        )

    @property
    def has_failed(self) -> bool:
        """Whether the last load has."""
        return bool(self.failure or self.reload_failure) or any(
            version.state is ModelState.UNAVAILABLE and version.reason not in DELIBERATE
            for version in self.versions.values()
        )

    @property
    def is_gone(self) -> bool:
        """Whether nothing is left of the model but what became of it."""
        return not (
            self.loads_under_way
            or self.evicted
            or self.lock.locked()
            or any(version.state is not ModelState.UNAVAILABLE for version in self.versions.values())
        )

    def note_failure(self, reason: str) -> None:
        """A load has failed; what served before goes on serving."""
        if self.ready_versions:
            self.reload_failure = reason
        else:
            self.versions, self.failure = {}, reason

    def index(self, namespace: str, name: str) -> list[ModelIndex]:
        """Versions that serve although a later load has failed say so in their reason."""
        if self.failure and not self.ready_versions:
            return [ModelIndex(name, "", ModelState.UNAVAILABLE.value, self.failure, namespace)]
        if not self.versions:
            return [ModelIndex(name, "", ModelState.LOADING.value if self.lock.locked() else "", "", namespace)]
        return [
            ModelIndex(name, str(version), entry.state.value, self._index_reason(entry), namespace)
            for version, entry in sorted(self.versions.items())
        ]

    def _index_reason(self, version: VersionEntry) -> str:
        if version.state is ModelState.READY and self.reload_failure:
            return f"serves as it was before the last load, which failed: {self.reload_failure}"
        return version.reason


def _nobody_is_told(identifier: str) -> None:
    pass


def ambiguous_name(name: str, count: int) -> InvalidArgument:
    return InvalidArgument(
        f"There are {count} identifiers of model '{name}' in global map, model namespace must be provided to resolve "
        "ambiguity."
    )


class ModelTable:
    """Models by identifier. Look-ups raise the error for the client (reference: HTTP section "Health").

    With `is_namespaced` a name alone is looked up too, and good if only one model has it. Whoever changes what the
    look-ups find of a model calls `changed` with its identifier, which tells those that keep what they have found.
    """

    def __init__(self, *, is_namespaced: bool = False) -> None:
        self.entries: dict[str, ModelEntry] = {}
        # Versions that were loaded, and loads that have failed by the kind of their error.
        self.loads = 0
        self.load_failures: Counter[str] = Counter()
        self.changed: Callable[[str], None] = _nobody_is_told
        self._is_namespaced = is_namespaced
        # With namespaces: by name alone.
        self._named: defaultdict[str, list[ModelEntry]] = defaultdict(list)

    def entry(self, identifier: str) -> ModelEntry:
        """The entry of a model, made if need be."""
        found = self.entries.get(identifier)
        if found is None:
            found = self.entries[identifier] = ModelEntry(identifier)
            self._named[self.split(identifier)[1]].append(found)
        return found

    @contextmanager
    def passing_entry(self, name: str) -> Iterator[ModelEntry]:
        """The entry of a model that no repository needs to have, for a load. Clients make up such names, so only the
        last `KEPT_PASSING` of those that are gone are remembered."""
        entry = self.find_entry(name)
        if entry is None:
            gone = [each for each in self.entries.values() if each.is_passing and each.is_gone]
            for each in gone[: max(0, len(gone) + 1 - KEPT_PASSING)]:
                self._forget(each)
            entry = self.entry(name)
            entry.is_passing = True
        entry.loads_under_way += 1
        try:
            yield entry
        finally:
            entry.loads_under_way -= 1

    def _forget(self, entry: ModelEntry) -> None:
        del self.entries[entry.name]
        name = self.split(entry.name)[1]
        self._named[name].remove(entry)
        if not self._named[name]:
            del self._named[name]

    def split(self, identifier: str) -> tuple[str, str]:
        """Namespace and name."""
        return split_identifier(identifier) if self._is_namespaced else ("", identifier)

    def find_entry(self, name: str) -> ModelEntry | None:
        """By identifier, or by a name that only one model has, of those that serve if any does.

        Raises:
            InvalidArgument: several have it.
        """
        entry = self.entries.get(name)
        if entry is not None or not self._is_namespaced or name not in self._named:
            return entry
        known = [each for each in self._named[name] if each.versions or each.failure]
        found = [each for each in known if each.can_serve] or known
        if len(found) > 1:
            raise ambiguous_name(name, len(found))
        return found[0] if found else None

    def with_needs(self, name: str) -> list[str]:
        """A model's identifier after those of all that it is composed of, as far as they can serve."""
        names: list[str] = []

        def visit(entry: ModelEntry | None, trail: tuple[str, ...]) -> None:
            if entry is None or not entry.can_serve or entry.name in (*names, *trail):
                return
            for needed in entry.needs:
                visit(self.entries.get(needed), (*trail, entry.name))
            names.append(entry.name)

        visit(self.find_entry(name), ())
        return names

    def find(self, name: str, version: int = LATEST_VERSION) -> Servable:
        """The model that serves a request; one that was evicted serves when it is leased
        (`actors.lifecycle.residence`).

        Raises:
            NotFound: no such model or version.
            Unavailable: the version is known, but does not serve now.
            InvalidArgument: models of several namespaces have this name.
        """
        entry = self.entries.get(name) or self.find_entry(name)
        if entry is None or not (entry.versions or entry.failure):
            raise NotFound(f"Request for unknown model: '{shown_name(name)}' is not found")
        if version == LATEST_VERSION:
            latest = entry.latest()
            if latest is None and entry.evicted:
                return entry.evicted[max(entry.evicted)]
            if latest is None:
                raise NotFound(f"Request for unknown model: '{name}' has no available versions")
            return latest
        found = entry.versions.get(version)
        if version in entry.evicted:
            return entry.evicted[version]
        if found is None:
            raise NotFound(f"Request for unknown model: '{name}' version {version} is not found")
        if found.state is not ModelState.READY or found.model is None:
            raise Unavailable(f"Request for unknown model: '{name}' version {version} is not at ready state")
        return found.model

    def find_each(self, name: str, version: int = LATEST_VERSION) -> Iterator[Servable]:
        """The ready models that a statistics call asks for: one version, all of a model, or (no name) everything. There
        may be a wait between two.

        Raises:
            InvalidArgument: what is asked for does not exist.
        """
        if not name:
            return (model for _, model in self.ready())
        entry = self.find_entry(name)
        found = [] if entry is None else entry.serving
        if not found:
            raise InvalidArgument(f"requested model '{shown_name(name)}' is not available")
        if version != LATEST_VERSION:
            found = [model for model in found if model.version == version]
            if not found:
                raise InvalidArgument(f"requested model version is not available for model '{name}'")
        return iter(found)

    def ready(self) -> Iterator[tuple[ModelEntry, Servable]]:
        """Every model that serves, or would after a load on demand, by name and version. There may be a wait between
        two: what comes meanwhile is not among them, what goes is not either."""
        for _, entry in sorted(self.entries.items()):
            for model in entry.serving:
                yield entry, model
