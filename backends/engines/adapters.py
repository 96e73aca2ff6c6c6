"""Adapters of one engine: those of the model's files, and those that were added and removed while it is loaded.

Owned by the backend. What is to be there is in `InstanceSpec.adapters`, which all instances of a model share; `follow`
has one worker do so, and `catch_up` a new one before it serves.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from backends.engines.generations import Generations
from backends.engines.worker_link import EngineWorker
from backends.interface import AddedAdapter
from protocol.errors import InvalidArgument

logger = logging.getLogger("trioton.backends.engines")

_MOST_NAMED = 32  # in the text of an error


class EngineAdapters:
    """`own` are the folders of those that the model's files name."""

    def __init__(
        self, where: str, own: Mapping[str, str], added: Mapping[str, AddedAdapter], generations: Generations
    ) -> None:
        self._where = where
        self._own = own
        self._added = added
        self._generations = generations
        # What the worker was told last of each, as in `added`.
        self._followed: dict[str, AddedAdapter | None] = {}
        self._changing: set[str] = set()

    def at_start(self) -> dict[str, str]:
        """Those that a new worker is to load with its engine; the others are told to it afterwards."""
        self._followed.clear()
        return {name: folder for name, folder in self._own.items() if name not in self._added}

    def is_behind(self) -> bool:
        """Whether a worker that has just been loaded is to `catch_up`."""
        return any(self._followed.get(name) is not added for name, added in self._added.items())

    async def catch_up(self, worker: EngineWorker) -> None:
        """One that cannot be loaded any more is left out, and the log says so. Raises Unavailable: the worker has
        ended."""
        for name, added in list(self._added.items()):
            try:
                await self.follow(worker, name)
            except InvalidArgument as error:
                self._followed[name] = added
                logger.error("%s: the adapter '%s' is lost with the engine's restart: %s", self._where, name, error)

    async def follow(self, worker: EngineWorker, name: str) -> None:
        """Have one as it is to be. Raises as `Backend.follow_adapter`."""
        self._changing.add(name)
        try:
            await self._follow(worker, name)
        finally:
            self._changing.discard(name)

    async def _follow(self, worker: EngineWorker, name: str) -> None:
        wanted = self._added.get(name)
        if self._followed.get(name) is wanted:
            return
        self._followed[name] = AddedAdapter(name)  # neither, until it is done
        if name in worker.adapters:
            await self._generations.wait_unused(name)
            await worker.remove_adapter(name)
        folder = wanted.folder if wanted is not None else self._own.get(name, "")
        if folder:
            await worker.add_adapter(name, folder)
        if wanted is None:
            del self._followed[name]
        else:
            self._followed[name] = wanted

    def check(self, worker: EngineWorker, name: str) -> None:
        """Judge the adapter of a request. Raises InvalidArgument: there is none of this name."""
        added = self._added.get(name)
        is_going = name in self._changing or (added is not None and not added.folder)
        if is_going or name not in worker.adapters:
            known = sorted(worker.adapters)
            more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
            raise InvalidArgument(
                f"{self._where}: LoRA {name} is not supported, we currently support {known[:_MOST_NAMED]}{more}"
            )
