"""Whether the models that an ensemble needs can be had, before they are loaded and after.

Consulted by the model manager, which does the loading.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from actors.ensemble.dependencies import find_circle, needs_of
from actors.model_loading import ModelLoader
from actors.model_table import ModelTable
from protocol.core import LoadParameters
from protocol.errors import InvalidArgument
from repository.layout import Repository, find_model


class ComposingModels:
    """`name` is the ensemble that is to be loaded, `names` are the models of its steps."""

    def __init__(self, table: ModelTable, loader: ModelLoader, repositories: Sequence[Repository]) -> None:
        self._table = table
        self._loader = loader
        self._repositories = repositories

    async def check(self, name: str, names: Sequence[str]) -> None:
        """Before any is loaded, so that no two loads wait for each other.

        Raises:
            InvalidArgument: the ensemble needs itself, or a model that is not there.
        """
        needs = await self._all_needs(name, names)
        circle = find_circle(name, needs)
        if circle:
            raise InvalidArgument(f"circular dependency between ensembles: {' -> '.join(circle)}")
        missing = sorted(each for each in names if each not in needs)
        if missing:
            raise InvalidArgument(
                f"ensemble {name} contains models that are not available or ambiguous: {', '.join(missing)}"
            )

    def check_loaded(self, name: str, names: Sequence[str]) -> None:
        """After they were loaded.

        Raises:
            InvalidArgument: one of them does not serve.
        """
        for needed in map(self._table.entry, names):
            if not needed.ready_versions:
                because = f" Model '{needed.name}' loading failed with error: {needed.reason}" if needed.reason else ""
                raise InvalidArgument(
                    f"ensemble '{name}' depends on '{needed.name}' which has no loaded version.{because}"
                )

    async def _all_needs(self, name: str, names: Sequence[str]) -> dict[str, Sequence[str]]:
        """What a model's composing models need in their turn, and so on; only of those that can be had."""
        needs: dict[str, Sequence[str]] = {name: names}
        left = list(names)
        while left:
            needed = left.pop()
            if needed in needs:
                continue
            found: Sequence[str] | None = needs_of(self._table.entries.get(needed))
            if found is None:
                places = await trio.to_thread.run_sync(find_model, self._repositories, needed)
                if needed not in places.models:
                    continue
                found = await self._loader.composing_models(places.models[needed], LoadParameters())
            needs[needed] = found
            left += found
        return needs
