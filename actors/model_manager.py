"""Model manager: loads and unloads models and owns every model actor.

Flow: core → [model manager] → model. Started and owned by the core. Loads and unloads are messages, each handled in a
task of its own, so that a client that goes away ends no load half-way; those of one model run one after the other.
A version is loaded beside the one that it replaces, which then finishes its requests; a failed load changes nothing.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import trio

from actors.model import Model
from actors.model_loading import ModelLoader, with_reason
from actors.model_table import UNLOADED, ModelEntry, ModelState, ModelTable, VersionEntry
from actors.statistics import VersionSnapshot
from protocol.core import LoadParameters, ModelIndex
from protocol.errors import Internal, InvalidArgument, ServerError, Unavailable
from protocol.messages import LATEST_VERSION
from repository.fingerprint import fingerprint
from repository.layout import DUPLICATE_MODEL, FoundModels, ModelDirectory, check_model_name, find_model, find_models
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
    reply: trio.MemorySendChannel[Outcome]


class ModelManager:
    """`run` owns the models; the other methods are its address."""

    def __init__(
        self,
        repositories: Sequence[Path],
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
            for entry in self._table.entries.values():
                self._retire(entry.versions.values())

    # The address

    def find(self, name: str, version: int = LATEST_VERSION) -> Model:
        return self._table.find(name, version)

    def find_all(self, name: str = "", version: int = LATEST_VERSION) -> list[Model]:
        return self._table.find_all(name, version)

    def ready_versions(self, name: str) -> tuple[int, ...]:
        return self._table.entry(name).ready_versions

    def is_ready(self) -> bool:
        """Strict readiness: every model that was asked for serves."""
        return all(entry.is_as_asked() for entry in self._table.entries.values())

    def snapshots(self) -> list[VersionSnapshot]:
        return [
            VersionSnapshot(
                model=entry.name,
                version=model.version,
                metric_tags=model.config.metric_tags,
                statistics=model.statistics.frozen(entry.name, model.version),
                pending_requests=model.pending_count,
                load_seconds=entry.versions[model.version].load_seconds,
                failures={reason.value: count for reason, count in model.statistics.failures.items()},
                histograms=model.statistics.histograms.frozen() if model.statistics.histograms is not None else {},
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

    async def unload(self, name: str) -> None:
        """Returns when unloading has begun; requests in flight finish. Unknown models are unloaded already."""
        self._refuse_unless_explicit()
        await self._call(partial(Unload, name))

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
                    case Unload(name):
                        await self._unload(name)
            except ServerError as error:
                outcome = error
            with suppress(trio.BrokenResourceError):  # the caller has gone
                message.reply.send_nowait(outcome)

    async def _load_at_start(self, models: trio.Nursery) -> None:
        found = await trio.to_thread.run_sync(find_models, self._repositories)
        names = sorted({*found.models, *found.duplicates})
        if self._control_mode is ControlMode.EXPLICIT and "*" not in self._load_models:
            names = list(dict.fromkeys(self._load_models))
        async with trio.open_nursery() as loads:
            for name in names:
                loads.start_soon(self._load_logged, name, models)

    async def _load_logged(self, name: str, models: trio.Nursery) -> None:
        try:
            await self._load(name, LoadParameters(), models)
        except ServerError as error:  # noted in the table; the other models serve
            entry = self._table.entry(name)
            if not entry.versions and not entry.failure:
                entry.failure = with_reason(error)
                logger.error("%s", error)

    async def _load(self, name: str, parameters: LoadParameters, models: trio.Nursery) -> None:
        if parameters.files:
            await self._load_files(name, parameters, models)
            return
        directory = await self._find_directory(name)
        entry = self._table.entry(name)
        async with entry.lock:
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
        entry = self._table.entry(name)
        async with entry.lock:
            try:
                async with self._load_limit:
                    await self._replace(entry, files.directory, parameters, models, files)
                entry.loaded_from = None
            finally:
                await _release(files)

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
            prepared = await self._loader.prepare(directory, parameters)
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
        try:
            await version.model.run(task_status=task_status)
        except ServerError as error:
            if version.state is ModelState.LOADING:
                raise
            logger.error("model '%s' version %d has failed: %s", name, version.version, error)
            version.reason = with_reason(error)
        finally:
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

    async def _unload(self, name: str) -> None:
        entry = self._table.entries.get(name)
        if entry is None:
            return
        async with entry.lock:
            entry.loaded_from, entry.failure = None, ""
            self._retire(entry.versions.values())


async def _release(files: OverrideFiles) -> None:
    with trio.CancelScope(shield=True):  # a few files to remove
        await trio.to_thread.run_sync(files.release)
