"""The life cycle of a model's versions: loaded beside those that serve, swapped with them, drained and unloaded.

Flow: model control → [model life cycle] → model. Runs every model actor, in the model manager's nursery.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import trio

from actors.ensemble.dependencies import EnsembleDependencies
from actors.model_loading import ModelLoader, with_reason
from actors.model_table import UNLOADED, ModelEntry, ModelState, ModelTable, VersionEntry
from protocol.core import LoadParameters
from protocol.errors import Internal, InvalidArgument, ServerError
from repository.layout import ModelDirectory
from repository.override_files import OverrideFiles

logger = logging.getLogger("trioton.model_manager")


class ModelLifeCycle:
    """Changes the entries of the table. Who calls `replace` or `retire` for an entry holds its lock; `models` is the
    nursery in which models run from their load to their end."""

    def __init__(
        self, table: ModelTable, loader: ModelLoader, dependencies: EnsembleDependencies, models: trio.Nursery
    ) -> None:
        self._table = table
        self._loader = loader
        self._dependencies = dependencies
        self._models = models

    async def replace(
        self,
        entry: ModelEntry,
        directory: ModelDirectory,
        parameters: LoadParameters,
        files: OverrideFiles | None = None,
    ) -> None:
        """Load the model as it is now beside what serves, then swap."""
        logger.info("loading: %s", entry.name)
        try:
            agents = await self._loader.agents(directory, parameters)
            directory = await agents.load()
        except Exception as error:
            raise self.failed(entry, error) from None
        old = entry.versions
        try:
            new = await self._bring_up(entry, directory, parameters, files)
        except BaseException:
            await agents.fail()
            raise
        self._models.start_soon(agents.attend, tuple(new.values()))
        entry.versions, entry.failure = new, ""
        self.retire(old.values())
        self._dependencies.replaced(entry.name)
        logger.info("successfully loaded '%s'", entry.name)

    async def _bring_up(
        self, entry: ModelEntry, directory: ModelDirectory, parameters: LoadParameters, files: OverrideFiles | None
    ) -> dict[int, VersionEntry]:
        """All versions, ready. Raised, none of them is left; cancelled, they end with the nursery of the models."""
        try:
            prepared = await self._loader.prepare(directory, parameters, self._table.find)
        except Exception as error:
            raise self.failed(entry, error) from None
        new = {model.version: VersionEntry(model.version, model, files) for model in prepared}
        if not entry.ready_versions:
            entry.versions, entry.failure = new, ""
        async with trio.open_nursery() as loads:
            for version in new.values():
                loads.start_soon(self._start, entry.name, version)
        if any(version.state is not ModelState.READY for version in new.values()):
            failed = "".join(
                f"version {version.version} is at UNAVAILABLE state: {version.reason};\n"
                for version in new.values()
                if version.state is ModelState.UNAVAILABLE
            )
            self.retire(new.values())
            for version in new.values():
                await version.ended.wait()
            raise InvalidArgument(f"load failed for model '{entry.name}': {failed}")
        return new

    def failed(self, entry: ModelEntry, error: Exception) -> ServerError:
        """Note a load that came to no version; what served before goes on serving."""
        if not isinstance(error, ServerError):
            logger.error("model '%s' failed to load", entry.name, exc_info=error)
            error = Internal(f"{type(error).__name__}: {error}")
        reason = with_reason(error)
        logger.error("failed to load '%s': %s", entry.name, reason)
        if not entry.ready_versions:
            entry.versions, entry.failure = {}, reason
        return InvalidArgument(f"failed to load '{entry.name}': {reason}")

    async def _start(self, name: str, version: VersionEntry) -> None:
        """Bring one version up; its state says how that went."""
        began = trio.current_time()
        try:
            await self._models.start(self._run, name, version)
        except ServerError as error:
            version.state, version.reason, version.model = ModelState.UNAVAILABLE, with_reason(error), None
            logger.error("failed to load '%s' version %d: %s", name, version.version, version.reason)
        else:
            version.state, version.load_seconds = ModelState.READY, trio.current_time() - began

    async def _run(self, name: str, version: VersionEntry, *, task_status: trio.TaskStatus[None]) -> None:
        """One model actor, from its load to its end. Once it serves, a failure of it is not the server's."""
        assert version.model is not None
        if version.files is not None:
            version.files.share()
        self._dependencies.entered(version)
        try:
            await version.model.run(task_status=task_status)
        except ServerError as error:
            if version.state is ModelState.LOADING:
                raise
            logger.error("model '%s' version %d has failed: %s", name, version.version, error)
            version.reason = with_reason(error)
        finally:
            self._dependencies.left(version)
            version.leaving.set()
            version.ended.set()
            if version.files is not None:
                await release(version.files)
        version.state, version.model = ModelState.UNAVAILABLE, None
        version.reason = version.reason or UNLOADED
        logger.info("successfully unloaded '%s' version %d", name, version.version)

    def retire(self, versions: Iterable[VersionEntry]) -> None:
        """Let versions finish their requests and unload; they end in `_run`."""
        for version in versions:
            if version.state is ModelState.READY and version.model is not None:
                version.state = ModelState.UNLOADING
                version.leaving.set()
                version.model.drain()

    async def retire_all(self) -> None:
        """Let everything finish, each ensemble before the models that its requests still need."""
        while waiting := [entry for entry in self._table.entries.values() if entry.ready_versions]:
            free = [entry for entry in waiting if not self._dependencies.is_needed(entry.name)]
            draining = self._dependencies.draining()
            for entry in free if free or draining else waiting:
                self.retire(entry.versions.values())
            for version in self._dependencies.draining():
                await version.ended.wait()


async def release(files: OverrideFiles) -> None:
    with trio.CancelScope(shield=True):  # a few files to remove
        await trio.to_thread.run_sync(files.release)
