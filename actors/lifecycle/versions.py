"""Version life cycle: loads a model's new versions beside the old, swaps them atomically, and drains and unloads the
old.

Flow: model control → [model life cycle] → model. Runs every model actor, in the model manager's nursery.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import trio

from actors.lifecycle.dependencies import EnsembleDependencies
from actors.lifecycle.download import release
from actors.lifecycle.freed_memory import FreedMemory
from actors.lifecycle.loader import ModelLoader, with_reason
from actors.lifecycle.residence import Residence
from actors.lifecycle.table import UNLOADED, ModelEntry, ModelState, ModelTable, VersionEntry
from actors.model.backoff import RestartBackoff
from actors.model.servable import Servable
from protocol.core import LoadParameters
from protocol.errors import Internal, InvalidArgument, NotFound, ServerError, Unsupported, text_of
from protocol.failures import CallbackFailures
from repository.changes import LoadedFrom, has_same_instances, unchanged_versions
from repository.held_directory import HeldDirectory
from repository.layout import ModelDirectory
from repository.model_config import ModelConfig
from repository.override_files import OverrideFiles

logger = logging.getLogger("trioton.model_manager")

# What a load does not get over by being tried again.
LASTING = (InvalidArgument, NotFound, Unsupported)


class LoadFailed(InvalidArgument):
    """A failed load. `may_pass`: a retry may succeed, as the cause was not in the files."""

    def __init__(self, message: str, *, may_pass: bool) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class _Loaded:
    """A task status that remembers whether it was called."""

    def __init__(self, status: trio.TaskStatus[None]) -> None:
        self._status = status
        self.is_told = False

    def started(self, value: None = None) -> None:
        self.is_told = True
        self._status.started()


class ModelLifeCycle:
    """Changes the entries of the table. A caller of `replace` or `retire` holds the lock of the entry; `models` is the
    nursery in which models run from their load to their end."""

    def __init__(
        self,
        table: ModelTable,
        loader: ModelLoader,
        dependencies: EnsembleDependencies,
        models: trio.Nursery,
        *,
        retries: int = 0,
        residence: Residence | None = None,
        failures: CallbackFailures | None = None,
    ) -> None:
        self._failures = failures or CallbackFailures()
        self._table = table
        self._loader = loader
        self._dependencies = dependencies
        self._models = models
        # Replaced versions whose open sequences go on.
        self._lingering: set[VersionEntry] = set()
        self._retries = retries
        self._residence = residence
        self._freed_memory = FreedMemory(models, self._failures)

    async def replace(
        self,
        entry: ModelEntry,
        directory: ModelDirectory,
        source: LoadedFrom,
        parameters: LoadParameters,
        files: HeldDirectory | None = None,
    ) -> None:
        """Load the model as it is now beside what serves, then swap. Versions for which nothing has changed go on as
        they are."""
        logger.info("loading: %s", entry.name)
        agents = self._loader.agents(directory, source.config)
        try:
            moved = await agents.load()
        except Exception as error:
            raise self.failed(entry, error) from None
        old = entry.versions
        kept = self._kept(entry, source, files)
        try:
            config = source.config if moved == directory else None
            new = await self._bring_up_patiently(entry, moved, config, parameters, kept, files)
        except BaseException:
            if self._residence is not None:
                self._residence.note_failed(entry)
            await agents.fail()
            raise
        self._models.start_soon(agents.attend, tuple(new.values()))
        entry.versions, entry.failure, entry.reload_failure, entry.evicted = new, "", "", {}
        self._table.changed(entry.name)
        entry.loaded_from = None if isinstance(files, OverrideFiles) else source
        replaced = [version for version in old.values() if new.get(version.version) is not version]
        for version in replaced:
            if version.model is not None:
                version.model.find_successor = lambda request: self._table.find(entry.name, request.model_version)
        self._let_sequences_end(entry.name, replaced, new)
        self.retire(entry.name, replaced)
        self._dependencies.replaced(entry.name)
        if self._residence is not None:
            await self._residence.note_loaded(entry)
        logger.info("successfully loaded '%s'", entry.name)

    async def _bring_up_patiently(
        self,
        entry: ModelEntry,
        directory: ModelDirectory,
        config: ModelConfig | None,
        parameters: LoadParameters,
        kept: Mapping[int, VersionEntry],
        files: HeldDirectory | None,
    ) -> dict[int, VersionEntry]:
        """As `_bring_up`, retried with growing delays while the failure may be transient."""
        backoff = RestartBackoff()
        left = self._retries
        while True:
            try:
                prepared = await self._prepare(entry, directory, config, parameters)
                await self._make_room(entry, [each for each in prepared if each.version not in kept], parameters)
                return await self._bring_up(entry, prepared, kept, files)
            except LoadFailed as error:
                if not left or not error.may_pass:
                    raise
            delay = backoff.grown()
            logger.warning("'%s' failed to load, tried again in %g s (%d times more at most)", entry.name, delay, left)
            await trio.sleep(delay)
            left -= 1

    async def _make_room(self, entry: ModelEntry, models: Sequence[Servable], parameters: LoadParameters) -> None:
        if self._residence is None:
            return
        try:
            await self._residence.make_room(entry, models, within_budget=parameters.within_budget)
        except ServerError as error:
            raise self.failed(entry, error) from None

    async def _prepare(
        self, entry: ModelEntry, directory: ModelDirectory, config: ModelConfig | None, parameters: LoadParameters
    ) -> tuple[Servable, ...]:
        """Without a configuration, that of the directory is used."""
        names = entry.needed_names

        def find(name: str, version: int) -> Servable:
            return self._table.find(names.get(name, name), version)

        try:
            if config is None:
                config = await self._loader.read_config(directory, parameters)
            return await self._loader.prepare(directory, config, find)
        except Exception as error:
            raise self.failed(entry, error) from None

    async def _bring_up(
        self,
        entry: ModelEntry,
        prepared: Sequence[Servable],
        kept: Mapping[int, VersionEntry],
        files: HeldDirectory | None,
    ) -> dict[int, VersionEntry]:
        """Load all versions and return when they are ready. If it raises, none of the new ones is left; cancelled, they
        end with the nursery of the models."""
        new = {
            model.version: kept.get(model.version) or VersionEntry(model.version, model, files, entry.needs)
            for model in prepared
        }
        loading = [version for version in new.values() if version.state is ModelState.LOADING]
        for version in loading:
            if version.model is not None and (before := entry.evicted.get(version.version)) is not None:
                version.model.continue_from(before)
        if not entry.ready_versions:
            entry.versions, entry.failure = new, ""
            self._table.changed(entry.name)
        failures: dict[int, ServerError] = {}
        async with trio.open_nursery() as loads:
            for version in loading:
                loads.start_soon(self._start, entry.name, version, failures)
        reasons = {version.version: version.reason for version in loading if version.state is not ModelState.READY}
        if not reasons:
            reasons = await self._update_instances(entry.name, prepared, kept, failures)
        if reasons:
            failed = "".join(
                f"version {version} is at UNAVAILABLE state: {reason};\n" for version, reason in reasons.items()
            )
            self.retire(entry.name, loading)
            if entry.ready_versions:
                entry.reload_failure = failed.rstrip()
            for version in loading:
                await version.ended.wait()
            may_pass = not any(isinstance(error, LASTING) for error in failures.values())
            raise LoadFailed(f"load failed for model '{entry.name}': {failed}", may_pass=may_pass)
        return new

    async def _update_instances(
        self,
        name: str,
        prepared: Iterable[Servable],
        kept: Mapping[int, VersionEntry],
        failures: dict[int, ServerError],
    ) -> dict[int, str]:
        """Update the instances of the versions that serve on; returns why that has failed."""
        for wanted in prepared:
            serving = kept[wanted.version].model if wanted.version in kept else None
            if serving is None or serving.config.instance_group == wanted.config.instance_group:
                continue
            try:
                await serving.update_instances(wanted)
                self._table.changed(name)
            except ServerError as error:
                failures[wanted.version] = error
        return {version: with_reason(error) for version, error in failures.items()}

    def _kept(self, entry: ModelEntry, source: LoadedFrom, files: HeldDirectory | None) -> dict[int, VersionEntry]:
        """The versions that serve and need no load."""
        before = entry.loaded_from
        if before is None or isinstance(files, OverrideFiles):
            return {}
        unchanged = unchanged_versions(before, source)
        kept = {version: entry.versions[version] for version in entry.ready_versions if version in unchanged}
        if not has_same_instances(before, source):
            kept = {
                version: each
                for version, each in kept.items()
                if each.model is not None and each.model.can_update_instances
            }
        return kept

    def failed(self, entry: ModelEntry, error: Exception) -> LoadFailed:
        """Note a load that came to no version; what served before goes on serving."""
        if not isinstance(error, ServerError):
            logger.error("model '%s' failed to load", entry.name, exc_info=error)
            error = Internal(text_of(error))
        reason = with_reason(error)
        logger.error("failed to load '%s': %s", entry.name, reason)
        entry.note_failure(reason)
        self._table.changed(entry.name)
        self._table.load_failures[error.kind] += 1
        return LoadFailed(f"failed to load '{entry.name}': {reason}", may_pass=not isinstance(error, LASTING))

    async def _start(self, name: str, version: VersionEntry, failures: dict[int, ServerError]) -> None:
        """Start one version; its state says how that went, and `failures` gets the reason if it failed."""
        began = trio.current_time()
        try:
            await self._models.start(self._run, name, version)
        except Exception as raised:
            error = raised
            if not isinstance(error, ServerError):
                self._failures.note("control", error, f"model '{name}' version {version.version} could not be loaded")
                error = Internal(f"{type(raised).__name__}: {raised}")
            version.state, version.reason, version.model = ModelState.UNAVAILABLE, with_reason(error), None
            failures[version.version] = error
            self._table.load_failures[error.kind] += 1
            self._table.changed(name)
            logger.error("failed to load '%s' version %d: %s", name, version.version, version.reason)
        else:
            version.state, version.load_seconds = ModelState.READY, trio.current_time() - began
            self._table.loads += 1
            self._table.changed(name)

    async def _run(self, name: str, version: VersionEntry, *, task_status: trio.TaskStatus[None]) -> None:
        """Run one model actor, from its load to its end. Once it serves, its failure does not end the server."""
        loaded = _Loaded(task_status)
        try:
            await self._run_to_end(name, version, loaded)
        except Exception as error:
            if not loaded.is_told:  # raised to `_start`
                raise
            self._failures.note("instance", error, f"model '{name}' version {version.version} has failed")
            version.state, version.model = ModelState.UNAVAILABLE, None
            self._table.changed(name)
            version.reason = version.reason or with_reason(error)

    async def _run_to_end(self, name: str, version: VersionEntry, loaded: _Loaded) -> None:
        assert version.model is not None
        if version.files is not None:
            version.files.share()
        self._dependencies.entered(version)
        age = self._freed_memory.age()
        try:
            await version.model.run(task_status=loaded)
        except ServerError as error:
            if not loaded.is_told:
                raise
            logger.error("model '%s' version %d has failed: %s", name, version.version, error)
            version.reason = with_reason(error)
        finally:
            self._dependencies.left(version)
            self._lingering.discard(version)
            version.leaving.set()
            version.ended.set()
            if version.files is not None:
                await release(version.files)
        version.state, version.model = ModelState.UNAVAILABLE, None
        self._table.changed(name)
        version.reason = version.reason or UNLOADED
        logger.info("successfully unloaded '%s' version %d", name, version.version)
        entry = self._table.entries.get(name)
        if self._residence is not None and entry is not None and not entry.ready_versions:
            self._residence.note_gone(entry)
        self._freed_memory.note_unloaded(age)

    def _let_sequences_end(self, name: str, replaced: Iterable[VersionEntry], new: Mapping[int, VersionEntry]) -> None:
        """Keep a version for its open sequences, whose requests arrive at the version that replaced it."""
        for version in replaced:
            model = version.model
            successor = (new.get(version.version) or new[max(new)]).model
            if model is None or successor is None or version.state is not ModelState.READY:
                continue
            if model.open_sequences or model.predecessor is not None:
                successor.follow(model)
            if model.open_sequences:
                version.state = ModelState.UNLOADING
                version.leaving.set()
                model.drain(lets_sequences_end=True)
                self._lingering.add(version)
                self._table.changed(name)

    def retire(self, name: str, versions: Iterable[VersionEntry]) -> None:
        """Have versions of a model drain and unload; they end in `_run`."""
        for version in versions:
            if version.state is ModelState.READY and version.model is not None:
                version.state = ModelState.UNLOADING
                version.leaving.set()
                version.model.drain()
                self._table.changed(name)

    async def retire_all(self) -> None:
        """Drain everything at the end of the server, each ensemble before the models that its requests still need."""
        self._freed_memory.close()
        for version in self._lingering:
            if version.model is not None:
                version.model.drain()
        while waiting := [entry for entry in self._table.entries.values() if entry.ready_versions]:
            free = [entry for entry in waiting if not self._dependencies.is_needed(entry.name)]
            draining = self._dependencies.draining()
            for entry in free if free or draining else waiting:
                self.retire(entry.name, entry.versions.values())
            for version in self._dependencies.draining():
                await version.ended.wait()
