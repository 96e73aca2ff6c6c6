"""Dependencies between models: what an ensemble needs, in which order to load it, and what must stay loaded while it
runs.

Consulted by the model manager. The functions are pure; `EnsembleDependencies` is state without I/O, written by the
manager between two checkpoints.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from actors.lifecycle.table import ModelEntry, ModelState, VersionEntry
from protocol.errors import InvalidArgument
from repository.layout import identifier
from repository.model_config import ModelConfig
from repository.traffic_split import is_split, read_split

logger = logging.getLogger("trioton.model_manager")


class Needs(NamedTuple):
    """The models that a model needs before it can be loaded, and what kind of model it is, for errors. `by_name` maps
    the names by which it calls them where those are not their identifiers."""

    names: tuple[str, ...] = ()
    kind: str = "ensemble"
    by_name: Mapping[str, str] = {}


def needs_of_config(config: ModelConfig) -> Needs:
    return Needs(composing_models(config), "traffic split" if is_split(config) else "ensemble")


def with_step_identifiers(config: ModelConfig) -> ModelConfig:
    """The configuration with each step that names a namespace calling its model by its identifier."""
    ensemble = config.ensemble_scheduling
    if ensemble is None or not any(step.model_namespace for step in ensemble.step):
        return config
    steps = tuple(
        msgspec.structs.replace(step, model_name=identifier(step.model_namespace, step.model_name), model_namespace="")
        for step in ensemble.step
    )
    return msgspec.structs.replace(config, ensemble_scheduling=msgspec.structs.replace(ensemble, step=steps))


def composing_models(config: ModelConfig) -> tuple[str, ...]:
    """The models of an ensemble's steps, or of a traffic split, each once; none for any other model."""
    if is_split(config):
        try:
            return read_split(config).model_names
        except InvalidArgument:  # said when it is prepared
            return ()
    if not config.is_ensemble or config.ensemble_scheduling is None:
        return ()
    # A step without a model is a fault that is told when the ensemble is prepared.
    return tuple(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step if step.model_name))


def needs_of(entry: ModelEntry | None) -> tuple[str, ...] | None:
    """What a model that serves needs; None if it does not serve."""
    if entry is None or not entry.ready_versions:
        return None
    return tuple(dict.fromkeys(name for version in entry.ready_versions for name in entry.versions[version].needs))


def find_cycle(name: str, needs: Mapping[str, Sequence[str]]) -> list[str]:
    """The cycle of needs from a model back to itself, or to another that needs itself; empty if there is none."""
    done: set[str] = set()

    def visit(model: str, trail: list[str]) -> list[str]:
        if model in trail:
            return [*trail[trail.index(model) :], model]
        if model not in done:
            for needed in needs.get(model, ()):
                if cycle := visit(needed, [*trail, model]):
                    return cycle
            done.add(model)
        return []

    return visit(name, [])


def load_levels(names: Iterable[str], needs: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """The models in an order in which they can be loaded, in levels that can load concurrently: each comes after what
    it needs. Those that need themselves come last, to fail."""
    left = list(names)
    levels: list[list[str]] = []
    while left:
        waiting = set(left)
        level = [name for name in left if waiting.isdisjoint(needs.get(name, ()))]
        if not level:
            return [*levels, left]
        levels.append(level)
        waiting.difference_update(level)
        left = [name for name in left if name in waiting]
    return levels


class EnsembleDependencies:
    """The ensembles that are loaded or loading, until they end, and what they need."""

    def __init__(self) -> None:
        self._running: dict[VersionEntry, frozenset[str]] = {}
        self._wanted: Counter[str] = Counter()

    def entered(self, version: VersionEntry) -> None:
        """A version runs from now on."""
        if version.needs:
            self._running[version] = frozenset(version.needs)

    def left(self, version: VersionEntry) -> None:
        self._running.pop(version, None)

    @contextmanager
    def wanted(self, names: Sequence[str]) -> Iterator[None]:
        """While an ensemble loads, what it needs is not unloaded."""
        self._wanted.update(names)
        try:
            yield
        finally:
            self._wanted.subtract(names)

    def is_needed(self, name: str) -> bool:
        """Whether an ensemble that runs or loads needs this model."""
        return self._wanted[name] > 0 or any(name in names for names in self._running.values())

    def draining(self) -> list[VersionEntry]:
        """The ensembles that are draining."""
        return [version for version in self._running if version.state is ModelState.UNLOADING]

    def replaced(self, name: str) -> None:
        """Another version of this model serves now: the ensembles that need it must fit it."""
        for version, names in self._running.items():
            if name in names and version.model is not None:
                failure = version.model.check_composing()
                if failure is not None:
                    logger.error("%s", failure)
