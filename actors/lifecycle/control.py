"""Model control: loads and unloads models by name, each together with the models that it needs.

Flow: model manager → [model control] → model life cycle. Its calls run in tasks of the manager's nursery; a caller that
is cancelled leaves them running.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress

import trio

from actors.lifecycle.composing import ComposingModels
from actors.lifecycle.dependencies import EnsembleDependencies, Needs, needs_of
from actors.lifecycle.download import PARALLEL_PARTS, at_hand, release
from actors.lifecycle.loader import ModelLoader, with_reason
from actors.lifecycle.table import (
    EVICTED,
    UNLOADED,
    ModelEntry,
    ModelState,
    ModelTable,
    VersionEntry,
    ambiguous_name,
)
from actors.lifecycle.versions import ModelLifeCycle
from protocol.core import LoadParameters
from protocol.errors import Internal, InvalidArgument, ServerError, Unavailable, shown_name
from protocol.failures import CallbackFailures
from repository.changes import LoadedFrom
from repository.held_directory import HeldDirectory
from repository.layout import DUPLICATE_MODEL, ModelDirectory, check_model_name
from repository.override_files import OverrideFiles
from repository.repositories import Repositories

NO_PARAMETERS = LoadParameters()

logger = logging.getLogger("trioton.model_manager")


class ModelControl:
    """Loads and unloads of one model are serialised by the lock of its table entry; at most `load_limit` loads run at a
    time. `tasks` outlive the calls."""

    def __init__(
        self,
        life_cycle: ModelLifeCycle,
        table: ModelTable,
        loader: ModelLoader,
        repositories: Repositories,
        composing: ComposingModels,
        dependencies: EnsembleDependencies,
        *,
        load_limit: trio.CapacityLimiter,
        tasks: trio.Nursery,
        failures: CallbackFailures | None = None,
    ) -> None:
        self._failures = failures or CallbackFailures()
        self._life_cycle = life_cycle
        self._table = table
        self._loader = loader
        self._repositories = repositories
        self._composing = composing
        self._dependencies = dependencies
        self._load_limit = load_limit
        self._download_limit = trio.CapacityLimiter(PARALLEL_PARTS)
        self._tasks = tasks
        # The models whose last load failed for want of their store, so that the same files may be had another time.
        self.out_of_reach: set[str] = set()

    async def load_if_absent(
        self, name: str, tried: frozenset[str] = frozenset(), parameters: LoadParameters = NO_PARAMETERS
    ) -> None:
        """Load a model unless it serves already."""
        try:
            await self.load(name, parameters, tried, only_if_absent=True)
        except ServerError as error:  # noted in the table; the other models serve
            entry = self._table.entry(name)
            if not entry.versions and not entry.failure:
                entry.note_failure(with_reason(error))
                self._table.changed(entry.name)
                logger.error("%s", error)

    async def load(
        self,
        name: str,
        parameters: LoadParameters = NO_PARAMETERS,
        tried: frozenset[str] = frozenset(),
        *,
        only_if_absent: bool = False,
    ) -> ModelEntry:
        """Load a model. An ensemble's composing models are loaded first, if they are not; those that were `tried` are
        not tried again."""
        with self._defects_told(name):
            if parameters.files:
                return await self._load_files(name, parameters)
            self.out_of_reach.discard(name)
            try:
                return await self._load(name, parameters, tried, only_if_absent=only_if_absent)
            except Unavailable:
                self.out_of_reach.add(name)
                raise

    @contextmanager
    def _defects_told(self, name: str) -> Iterator[None]:
        """A defect fails the call that hits it with an error, and nothing else."""
        try:
            yield
        except ServerError:
            raise
        except Exception as error:
            self._failures.note("control", error, f"model '{shown_name(name)}' could not be loaded or unloaded")
            raise Internal(f"model '{shown_name(name)}': {type(error).__name__}: {error}") from None

    async def _load(
        self, name: str, parameters: LoadParameters, tried: frozenset[str], *, only_if_absent: bool
    ) -> ModelEntry:
        try:
            directory = await self._find_directory(name)
        except ServerError as error:
            self._table.load_failures[error.kind] += 1
            if name in self._table.entries:  # a name that was never heard of leaves nothing behind
                self._table.entries[name].note_failure(with_reason(error))
                self._table.changed(name)
            raise
        entry = self._table.entry(directory.identifier)
        entry.is_passing = False
        needed = await self._needs(entry, directory, parameters)
        with self._dependencies.wanted(needed.names):
            await self._load_composing(entry, needed, tried, within_budget=parameters.within_budget)
            await self._load_from(entry, directory, parameters, only_if_absent=only_if_absent)
        return entry

    async def _needs(self, entry: ModelEntry, directory: ModelDirectory, parameters: LoadParameters) -> Needs:
        needs = await self._composing.needs(directory, parameters)
        entry.needs, entry.needed_names = needs.names, needs.by_name
        return needs

    async def _load_from(
        self,
        entry: ModelEntry,
        directory: ModelDirectory,
        parameters: LoadParameters,
        *,
        only_if_absent: bool,
    ) -> None:
        async with entry.lock:
            if only_if_absent and entry.ready_versions:
                return
            async with self._at_hand(entry, directory) as (here, files):
                source = await self._read(entry, directory, here, parameters)
                if source == entry.loaded_from and entry.ready_versions:
                    entry.reload_failure = ""
                    return
                async with self._load_limit:
                    await self._life_cycle.replace(entry, here, source, parameters, files)
                entry.is_overridden = parameters.config is not None

    @asynccontextmanager
    async def _at_hand(
        self, entry: ModelEntry, directory: ModelDirectory
    ) -> AsyncIterator[tuple[ModelDirectory, HeldDirectory | None]]:
        """The model with its files on this machine; a failed download is a failed load."""
        async with AsyncExitStack() as stack:
            try:
                here = await stack.enter_async_context(at_hand(directory, limit=self._download_limit))
            except Unavailable as error:
                raise Unavailable(str(self._life_cycle.failed(entry, error))) from None
            except ServerError as error:
                raise self._life_cycle.failed(entry, error) from None
            yield here

    async def _read(
        self, entry: ModelEntry, directory: ModelDirectory, here: ModelDirectory, parameters: LoadParameters
    ) -> LoadedFrom:
        try:
            return await self._loader.read(directory, here, parameters)
        except ServerError as error:
            raise self._life_cycle.failed(entry, error) from None

    async def _load_files(self, name: str, parameters: LoadParameters) -> ModelEntry:
        """Load a model from the files of the call; no repository needs to have it. The next load without files uses the
        repository again."""
        check_model_name(name)
        files = await trio.to_thread.run_sync(OverrideFiles, name, parameters.files)
        try:
            with self._table.passing_entry(name) as entry:
                needed = await self._needs(entry, files.directory, parameters)
                with self._dependencies.wanted(needed.names):
                    await self._load_composing(entry, needed, frozenset(), within_budget=parameters.within_budget)
                    async with entry.lock:
                        source = await self._read(entry, files.directory, files.directory, parameters)
                        async with self._load_limit:
                            await self._life_cycle.replace(entry, files.directory, source, parameters, files)
                        entry.is_overridden = True
                return entry
        finally:
            await release(files)

    async def _load_composing(
        self, entry: ModelEntry, needs: Needs, tried: frozenset[str], *, within_budget: bool
    ) -> None:
        """Load the models of an ensemble's steps, or of a traffic split, that do not serve, while holding neither a
        lock nor a load slot.

        Raises:
            InvalidArgument: not all of them serve then, or the model would need itself.
        """
        if not needs.names:
            return
        try:
            parameters = LoadParameters(within_budget=within_budget)
            await self._composing.check(entry.name, needs)
            async with trio.open_nursery() as loads:
                for name in needs.names:
                    if name not in tried and not self._table.entry(name).can_serve:
                        loads.start_soon(self.load_if_absent, name, tried, parameters)
            self._composing.check_loaded(entry.name, needs)
        except ServerError as error:
            raise self._life_cycle.failed(entry, error) from None

    async def _find_directory(self, name: str) -> ModelDirectory:
        """Raises the error for a name that no repository has, or that more than one has."""
        found = await trio.to_thread.run_sync(self._repositories.find_model, name, abandon_on_cancel=True)
        for directory in found.models.values():
            return directory
        if found.duplicates and self._repositories.is_namespaced:
            raise ambiguous_name(name, len(found.duplicates[name]))
        reason = DUPLICATE_MODEL if found.duplicates else "failed to poll from model repository"
        raise InvalidArgument(f"failed to load '{shown_name(name)}', {reason}")

    async def needs(self, name: str) -> Sequence[str]:
        """What a model of the repositories needs, as far as its configuration can be read."""
        try:
            directory = await self._find_directory(name)
        except ServerError:
            return ()
        return (await self._composing.needs(directory, NO_PARAMETERS)).names

    def failed_for(self, name: str) -> list[str]:
        """The models whose last load failed, perhaps because this one was missing."""
        return [each.name for each in self._table.entries.values() if name in each.needs and each.has_failed]

    async def load_resident(self, name: str) -> None:
        """Load a model that was evicted (see `actors.lifecycle.residence`)."""
        if self._table.entry(name).can_serve:
            await self.load(name, only_if_absent=True)

    async def evict(self, name: str) -> None:
        """Unload a model until a request needs it again. Returns when it is gone."""
        with self._defects_told(name):
            await self._evict(self._table.entry(name))

    async def _evict(self, entry: ModelEntry) -> None:
        async with entry.lock:
            versions = [version for version in entry.versions.values() if version.state is ModelState.READY]
            for version in versions:
                if version.model is not None:
                    version.model.is_evicted, version.reason = True, EVICTED
                    entry.evicted[version.version] = version.model
            self._life_cycle.retire(entry.name, versions)
        for version in versions:
            await version.ended.wait()

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Returns when unloading the model's versions has begun."""
        entry = self._table.find_entry(name)
        if entry is not None:
            with self._defects_told(name):
                await self._unload(entry, unload_dependents=unload_dependents)

    async def _unload(self, entry: ModelEntry, *, unload_dependents: bool) -> None:
        async with entry.lock:
            entry.loaded_from, entry.failure, entry.reload_failure, entry.is_explicit = None, "", "", False
            self.out_of_reach.discard(entry.name)
            composing = needs_of(entry) or ()
            versions = list(entry.versions.values())
            if entry.evicted:
                entry.evicted.clear()
                self._table.changed(entry.name)
                for version in versions:
                    version.reason = UNLOADED
            self._life_cycle.retire(entry.name, versions)
        if unload_dependents and composing:
            self._tasks.start_soon(self._unload_composing, versions, composing)

    async def _unload_composing(self, ensembles: Sequence[VersionEntry], names: Sequence[str]) -> None:
        """When the ensembles have finished their requests, unload what was loaded for them alone."""
        for version in ensembles:
            await version.ended.wait()
        for name in names:
            entry = self._table.entries.get(name)
            if entry is not None and not entry.is_explicit and not self._dependencies.is_needed(name):
                with suppress(ServerError):  # said in the log
                    await self.unload(name, unload_dependents=True)
