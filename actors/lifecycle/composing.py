"""Composing models: checks that the models an ensemble or traffic split needs exist and can serve, before and after
they load.

Consulted by the model manager, which does the loading. Reads the model table; no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import trio

from actors.lifecycle.dependencies import Needs, find_cycle, needs_of
from actors.lifecycle.load_waits import LoadWaits
from actors.lifecycle.loader import ModelLoader
from actors.lifecycle.table import ModelTable
from protocol.core import LoadParameters
from protocol.errors import InvalidArgument
from repository.layout import ModelDirectory
from repository.repositories import Repositories


class ComposingModels:
    """`name` is the ensemble or the traffic split that is to be loaded, `needs` are the models that it needs."""

    def __init__(self, table: ModelTable, loader: ModelLoader, repositories: Repositories, waits: LoadWaits) -> None:
        self._table = table
        self._waits = waits
        self._loader = loader
        self._repositories = repositories

    async def needs(self, directory: ModelDirectory, parameters: LoadParameters) -> Needs:
        """What a model needs, by identifiers, as far as its configuration can be read."""
        needs = await self._loader.composing_models(directory, parameters)
        if not needs.names or not self._repositories.is_namespaced:
            return needs
        by_name: dict[str, str] = {}
        for name in needs.names:
            look = partial(self._repositories.resolve, name, directory.namespace)
            by_name[name] = await trio.to_thread.run_sync(look, abandon_on_cancel=True)
        return Needs(tuple(by_name.values()), needs.kind, by_name)

    async def check(self, name: str, needs: Needs) -> None:
        """Check before any is loaded, so that no two loads wait for each other.

        Raises:
            InvalidArgument: it needs itself, a model that does not exist, or one whose load waits for it.
        """
        all_needs = await self._all_needs(name, needs.names)
        cycle = find_cycle(name, all_needs)
        if cycle:
            raise InvalidArgument(f"circular dependency between {needs.kind}s: {' -> '.join(cycle)}")
        missing = sorted(each for each in needs.names if each not in all_needs)
        if missing:
            raise InvalidArgument(
                f"{needs.kind} {name} contains models that are not available or ambiguous: {', '.join(missing)}"
            )
        cycle = find_cycle(name, self._waiting_loads(name, all_needs))
        if cycle:
            raise InvalidArgument(f"the load of model '{name}' would wait for itself: {' → '.join(cycle)}")

    def check_loaded(self, name: str, needs: Needs) -> None:
        """Check after they were loaded.

        Raises:
            InvalidArgument: one of them does not serve.
        """
        for needed in map(self._table.entry, needs.names):
            if not needed.can_serve:
                because = f" Model '{needed.name}' loading failed with error: {needed.reason}" if needed.reason else ""
                raise InvalidArgument(
                    f"{needs.kind} '{name}' depends on '{needed.name}' which has no loaded version.{because}"
                )

    def _waiting_loads(self, name: str, needs: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """For the model and whatever it waits for: which loads each of them waits for."""
        waits: dict[str, list[str]] = {}
        left = [name]
        while left:
            each = left.pop()
            if each not in waits:
                waits[each] = [*filter(self._is_absent, needs.get(each, ())), *self._waits.of(each)]
                left += waits[each]
        return waits

    def _is_absent(self, name: str) -> bool:
        entry = self._table.entries.get(name)
        return entry is None or not entry.can_serve

    async def _all_needs(self, name: str, names: Sequence[str]) -> dict[str, Sequence[str]]:
        """The needs of a model's composing models, transitively; only of those that exist."""
        needs: dict[str, Sequence[str]] = {name: names}
        left = list(names)
        while left:
            needed = left.pop()
            if needed in needs:
                continue
            found: Sequence[str] | None = needs_of(self._table.entries.get(needed))
            if found is None:
                places = await trio.to_thread.run_sync(self._repositories.find_model, needed, abandon_on_cancel=True)
                if needed not in places.models:
                    continue
                found = (await self.needs(places.models[needed], LoadParameters())).names
            needs[needed] = found
            left += found
        return needs
