"""Model manager: loads and unloads models and owns every model actor.

Flow: core → [model manager] → model. Started and owned by the core. Loads and unloads are messages, each handled in a
task of its own, so that a client that goes away ends no load half-way; those of one model run one after the other.
A version is loaded beside the one that it replaces, which then finishes its requests; a failed load changes nothing.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import trio

from actors.ensemble.dependencies import EnsembleDependencies, Needs, load_levels, needs_of
from actors.ensemble.loading import ComposingModels
from actors.load_waits import LoadWaits
from actors.model import Model
from actors.model_loading import ModelLoader, with_reason
from actors.model_table import UNLOADED, ModelEntry, ModelState, ModelTable, VersionEntry
from actors.readiness import all_ready
from actors.statistics import VersionSnapshot
from actors.traffic_split import routed_texts
from protocol.core import LoadParameters, ModelIndex
from protocol.errors import Internal, InvalidArgument, ServerError, Unavailable
from protocol.messages import LATEST_VERSION
from repository.fingerprint import fingerprint
from repository.layout import (
    DUPLICATE_MODEL,
    FoundModels,
    ModelDirectory,
    Repository,
    check_model_name,
    find_model,
    find_models,
)
from repository.override_files import OverrideFiles

logger = logging.getLogger("trioton.model_manager")


class ControlMode(enum.Enum):
    """`--model-control-mode`: who decides which models are loaded."""

    NONE = "none"
    EXPLICIT = "explicit"


Outcome: TypeAlias = ServerError | None


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    parameters: LoadParameters
    reply: trio.MemorySendChannel[Outcome]


@dataclass(frozen=True, slots=True)
class Unload:
    name: str
    unload_dependents: bool
    reply: trio.MemorySendChannel[Outcome]


class ModelManager:
    """`run` owns the models; the other methods are its address."""

    def __init__(
        self,
        repositories: Sequence[Repository],
        loader: ModelLoader,
        *,
        control_mode: ControlMode,
        load_models: Sequence[str],
        load_limit: trio.CapacityLimiter,
    ) -> None:
        self._repositories = repositories
        self._loader = loader
        self._control_mode = control_mode
        self._load_models = load_models
        self._load_limit = load_limit
        self._table = ModelTable()
        self._dependencies = EnsembleDependencies()
        self._load_waits = LoadWaits()
        self._composing = ComposingModels(self._table, loader, repositories, self._load_waits)
        self._to_inbox, self._inbox = trio.open_memory_channel[Load | Unload](0)
        self.is_started = False

    async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load what is to be loaded at the start, then serve until `stop`; drain and unload everything, and return.

        Started when the start-up loads have ended; those that failed are in the index with their reason.
        """
        async with trio.open_nursery() as models:
            await self._load_at_start(models)
            self.is_started = True
            task_status.started()
            async with trio.open_nursery() as calls:
                calls.start_soon(self._hear, calls, models)
                await stop.wait()
                calls.cancel_scope.cancel()  # a load that has not ended is given up
            await self._retire_all()

    # The address

    def find(self, name: str, version: int = LATEST_VERSION) -> Model:
        return self._table.find(name, version)

    @contextmanager
    def load_for(self, loading: str, name: str) -> Iterator[None]:
        """Around a load or an unload of `name` that a model asks for; if it is being loaded itself, `loading` is its
        name, and it lends its place among the loads.

        Raises:
            InvalidArgument: the two would wait for each other.
        """
        if not loading:
            yield
            return
        with self._load_waits.waiting(loading, name):
            self._load_limit.total_tokens += 1
            try:
                yield
            finally:
                self._load_limit.total_tokens -= 1

    def find_all(self, name: str = "", version: int = LATEST_VERSION) -> list[Model]:
        return self._table.find_all(name, version)

    def ready_versions(self, name: str) -> tuple[int, ...]:
        return self._table.entry(name).ready_versions

    def is_ready(self) -> bool:
        """Strict readiness: every model that was asked for serves."""
        return all(entry.is_as_asked() for entry in self._table.entries.values())

    async def check_ready(self) -> bool:
        """As `is_ready`, with the models asked themselves."""
        return await all_ready([model.check_ready for _, model in self._table.ready()]) and self.is_ready()

    def snapshots(self) -> list[VersionSnapshot]:
        return [
            VersionSnapshot(
                model=entry.name,
                # Triton's label for ensembles.
                version=1 if model.composition is not None and len(entry.ready_versions) == 1 else model.version,
                metric_tags=model.config.metric_tags,
                statistics=model.statistics.frozen(entry.name, model.version, has_responses=False),
                pending_requests=model.pending_count,
                load_seconds=entry.versions[model.version].load_seconds,
                failures={reason.value: count for reason, count in model.statistics.failures.items()},
                histograms=model.statistics.histograms.frozen() if model.statistics.histograms is not None else {},
                summaries=model.statistics.summaries.frozen() if model.statistics.summaries is not None else {},
                flushes={reason.value: count for reason, count in model.statistics.flushes.items()},
                has_cache=model.statistics.has_cache,
                gpu=model.gpu,
                routed=routed_texts(model),
            )
            for entry, model in self._table.ready()
        ]

    async def index(self, *, ready: bool) -> list[ModelIndex]:
        """The known versions, and by name those models of the repositories that were never loaded."""
        found = await trio.to_thread.run_sync(find_models, self._repositories)
        index: list[ModelIndex] = []
        for name in sorted({*found.models, *found.duplicates, *self._table.entries}):
            if name in self._table.entries:
                index += self._table.entries[name].index()
            elif name in found.duplicates:
                index.append(ModelIndex(name, "", ModelState.UNAVAILABLE.value, DUPLICATE_MODEL))
            else:
                index.append(ModelIndex(name))
        return [entry for entry in index if not ready or entry.state == ModelState.READY.value]

    async def load(self, name: str, parameters: LoadParameters) -> None:
        """Returns when the model serves; raises if it does not. Cancelled, the load goes on without its caller."""
        self._refuse_unless_explicit()
        if parameters.files and parameters.config is None:
            raise InvalidArgument("Load parameter 'config' must be specified for model file override")
        await self._call(partial(Load, name, parameters))

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Returns when unloading has begun; requests in flight finish. Unknown models are unloaded already. With
        `unload_dependents` an ensemble's composing models follow it, if they were loaded for it alone."""
        self._refuse_unless_explicit()
        await self._call(partial(Unload, name, unload_dependents))

    def _refuse_unless_explicit(self) -> None:
        if self._control_mode is not ControlMode.EXPLICIT:
            raise Unavailable("explicit model load / unload is not allowed if polling is enabled")

    async def _call(self, message: partial[Load] | partial[Unload]) -> None:
        reply, answer = trio.open_memory_channel[Outcome](1)
        with answer:
            try:
                await self._to_inbox.send(message(reply=reply))
                outcome = await answer.receive()
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel):
                raise Unavailable("Server exiting") from None
        if outcome is not None:
            raise outcome

    # The actor

    async def _hear(self, calls: trio.Nursery, models: trio.Nursery) -> None:
        with self._inbox:
            async for message in self._inbox:
                calls.start_soon(self._answer, message, models)

    async def _answer(self, message: Load | Unload, models: trio.Nursery) -> None:
        with message.reply:
            outcome: Outcome = None
            try:
                match message:
                    case Load(name, parameters):
                        await self._load(name, parameters, models)
                        self._table.entry(name).is_explicit = True
                    case Unload(name, unload_dependents):
                        await self._unload(name, models, unload_dependents=unload_dependents)
            except ServerError as error:
                outcome = error
            with suppress(trio.BrokenResourceError):  # the caller has gone
                message.reply.send_nowait(outcome)

    async def _load_at_start(self, models: trio.Nursery) -> None:
        found = await trio.to_thread.run_sync(find_models, self._repositories)
        names = sorted({*found.models, *found.duplicates})
        if self._control_mode is ControlMode.EXPLICIT and "*" not in self._load_models:
            names = list(dict.fromkeys(self._load_models))
        needs = {
            name: (await self._loader.composing_models(found.models[name], LoadParameters())).names
            for name in names
            if name in found.models
        }
        tried: set[str] = set()
        for level in load_levels(names, needs):
            async with trio.open_nursery() as loads:
                for name in level:
                    self._table.entry(name).is_explicit = True
                    loads.start_soon(self._load_logged, name, models, frozenset(tried))
            tried.update(level)

    async def _load_logged(self, name: str, models: trio.Nursery, tried: frozenset[str] = frozenset()) -> None:
        """Load a model unless it serves already."""
        try:
            await self._load(name, LoadParameters(), models, tried, only_if_absent=True)
        except ServerError as error:  # noted in the table; the other models serve
            entry = self._table.entry(name)
            if not entry.versions and not entry.failure:
                entry.failure = with_reason(error)
                logger.error("%s", error)

    async def _load(
        self,
        name: str,
        parameters: LoadParameters,
        models: trio.Nursery,
        tried: frozenset[str] = frozenset(),
        *,
        only_if_absent: bool = False,
    ) -> None:
        """An ensemble's composing models are loaded first, if they are not; those that were `tried` are not again."""
        if parameters.files:
            await self._load_files(name, parameters, models)
            return
        directory = await self._find_directory(name)
        entry = self._table.entry(name)
        needed = await self._loader.composing_models(directory, parameters)
        with self._dependencies.wanted(needed.names):
            await self._load_composing(entry, needed, models, tried)
            await self._load_from(entry, directory, parameters, models, only_if_absent=only_if_absent)

    async def _load_from(
        self,
        entry: ModelEntry,
        directory: ModelDirectory,
        parameters: LoadParameters,
        models: trio.Nursery,
        *,
        only_if_absent: bool,
    ) -> None:
        async with entry.lock:
            if only_if_absent and entry.ready_versions:
                return
            seen = None if parameters.config else await trio.to_thread.run_sync(fingerprint, directory)
            if seen is not None and seen == entry.loaded_from and entry.ready_versions:
                return
            async with self._load_limit:
                await self._replace(entry, directory, parameters, models)
            entry.loaded_from = seen

    async def _load_files(self, name: str, parameters: LoadParameters, models: trio.Nursery) -> None:
        """Load a model from what the call brought; no repository needs to have it. The next load without files goes
        back to the repository."""
        check_model_name(name)
        files = await trio.to_thread.run_sync(OverrideFiles, name, parameters.files)
        try:
            entry = self._table.entry(name)
            needed = await self._loader.composing_models(files.directory, parameters)
            with self._dependencies.wanted(needed.names):
                await self._load_composing(entry, needed, models, frozenset())
                async with entry.lock:
                    async with self._load_limit:
                        await self._replace(entry, files.directory, parameters, models, files)
                    entry.loaded_from = None
        finally:
            await _release(files)

    async def _load_composing(
        self, entry: ModelEntry, needs: Needs, models: trio.Nursery, tried: frozenset[str]
    ) -> None:
        """Load those models of an ensemble's steps, or of a traffic split, that do not serve, without holding any lock
        or limit of its own.

        Raises:
            InvalidArgument: not all of them serve then, or the model would need itself.
        """
        if not needs.names:
            return
        try:
            await self._composing.check(entry.name, needs)
            async with trio.open_nursery() as loads:
                for name in needs.names:
                    if name not in tried and not self._table.entry(name).ready_versions:
                        loads.start_soon(self._load_logged, name, models, tried)
            self._composing.check_loaded(entry.name, needs)
        except ServerError as error:
            raise self._failed(entry, error) from None

    async def _find_directory(self, name: str) -> ModelDirectory:
        """Raises what a client is told of a name that no repository has, or that more than one has."""
        found: FoundModels = await trio.to_thread.run_sync(find_model, self._repositories, name)
        if name in found.models:
            return found.models[name]
        reason = DUPLICATE_MODEL if found.duplicates else "failed to poll from model repository"
        raise InvalidArgument(f"failed to load '{name}', {reason}")

    async def _replace(
        self,
        entry: ModelEntry,
        directory: ModelDirectory,
        parameters: LoadParameters,
        models: trio.Nursery,
        files: OverrideFiles | None = None,
    ) -> None:
        """Load the model as it is now beside what serves, then swap."""
        logger.info("loading: %s", entry.name)
        try:
            prepared = await self._loader.prepare(directory, parameters, self._table.find)
        except Exception as error:
            raise self._failed(entry, error) from None
        new = {model.version: VersionEntry(model.version, model, files) for model in prepared}
        old = entry.versions
        if not entry.ready_versions:
            entry.versions, entry.failure = new, ""
        async with trio.open_nursery() as loads:
            for version in new.values():
                loads.start_soon(self._start, entry.name, version, models)
        if any(version.state is not ModelState.READY for version in new.values()):
            failed = "".join(
                f"version {version.version} is at UNAVAILABLE state: {version.reason};\n"
                for version in new.values()
                if version.state is ModelState.UNAVAILABLE
            )
            self._retire(new.values())
            raise InvalidArgument(f"load failed for model '{entry.name}': {failed}")
        entry.versions, entry.failure = new, ""
        self._retire(old.values())
        self._dependencies.replaced(entry.name)
        logger.info("successfully loaded '%s'", entry.name)

    def _failed(self, entry: ModelEntry, error: Exception) -> ServerError:
        """Note a load that came to no version; what served before goes on serving."""
        if not isinstance(error, ServerError):
            logger.error("model '%s' failed to load", entry.name, exc_info=error)
            error = Internal(f"{type(error).__name__}: {error}")
        reason = with_reason(error)
        logger.error("failed to load '%s': %s", entry.name, reason)
        if not entry.ready_versions:
            entry.versions, entry.failure = {}, reason
        return InvalidArgument(f"failed to load '{entry.name}': {reason}")

    async def _start(self, name: str, version: VersionEntry, models: trio.Nursery) -> None:
        """Bring one version up; its state says how that went."""
        began = trio.current_time()
        try:
            await models.start(self._run, name, version)
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
            version.ended.set()
            if version.files is not None:
                await _release(version.files)
        version.state, version.model = ModelState.UNAVAILABLE, None
        version.reason = version.reason or UNLOADED
        logger.info("successfully unloaded '%s' version %d", name, version.version)

    def _retire(self, versions: Iterable[VersionEntry]) -> None:
        """Let versions finish their requests and unload; they end in `_run`."""
        for version in versions:
            if version.state is ModelState.READY and version.model is not None:
                version.state = ModelState.UNLOADING
                version.model.drain()

    async def _retire_all(self) -> None:
        """Let everything finish, each ensemble before the models that its requests still need."""
        while waiting := [entry for entry in self._table.entries.values() if entry.ready_versions]:
            free = [entry for entry in waiting if not self._dependencies.is_needed(entry.name)]
            draining = self._dependencies.draining()
            for entry in free if free or draining else waiting:
                self._retire(entry.versions.values())
            for version in self._dependencies.draining():
                await version.ended.wait()

    async def _unload(self, name: str, models: trio.Nursery, *, unload_dependents: bool) -> None:
        entry = self._table.entries.get(name)
        if entry is None:
            return
        async with entry.lock:
            entry.loaded_from, entry.failure, entry.is_explicit = None, "", False
            composing = needs_of(entry) or ()
            versions = list(entry.versions.values())
            self._retire(versions)
        if unload_dependents and composing:
            models.start_soon(self._unload_composing, versions, composing, models)

    async def _unload_composing(
        self, ensembles: Sequence[VersionEntry], names: Sequence[str], models: trio.Nursery
    ) -> None:
        """When the ensembles have finished their requests, unload what was loaded for them alone."""
        for version in ensembles:
            await version.ended.wait()
        for name in names:
            entry = self._table.entries.get(name)
            if entry is not None and not entry.is_explicit and not self._dependencies.is_needed(name):
                await self._unload(name, models, unload_dependents=True)


async def _release(files: OverrideFiles) -> None:
    with trio.CancelScope(shield=True):  # a few files to remove
        await trio.to_thread.run_sync(files.release)
