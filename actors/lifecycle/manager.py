"""Model manager: the actor that owns every model, and handles loads, unloads and the repository index.

Flow: core → [model manager] → model. Started and owned by the core. Each load or unload runs in a task of the manager's
nursery, so that a cancelled client leaves none half done. Loads are in `control`, version swaps in `versions`, both of
this package.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import trio

from actors.instance.readiness import all_ready
from actors.lifecycle.composing import ComposingModels
from actors.lifecycle.control import ModelControl
from actors.lifecycle.dependencies import EnsembleDependencies, load_levels
from actors.lifecycle.load_waits import LoadWaits
from actors.lifecycle.loader import ModelLoader
from actors.lifecycle.residence import Residence
from actors.lifecycle.snapshots import LoadSnapshot, version_snapshots
from actors.lifecycle.table import ModelState, ModelTable
from actors.lifecycle.versions import ModelLifeCycle
from actors.lifecycle.watcher import RepositoryWatcher
from actors.metrics.statistics import VersionSnapshot
from actors.model.servable import Servable
from protocol.core import LoadParameters, ModelIndex, ModelRepository
from protocol.errors import Internal, InvalidArgument, ServerError, Unavailable, Unsupported
from protocol.failures import CallbackFailures
from protocol.messages import LATEST_VERSION, InferenceRequest
from protocol.sync.sliced import Sliced, run_sliced
from repository.layout import DUPLICATE_MODEL, FoundModels
from repository.override_files import remove_abandoned
from repository.repositories import Repositories

logger = logging.getLogger("trioton.model_manager")


class ControlMode(enum.Enum):
    """`--model-control-mode`: who decides which models are loaded."""

    NONE = "none"
    POLL = "poll"
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


@dataclass(frozen=True, slots=True)
class Change:
    """Something that is done to a model that serves, and that it does by itself."""

    name: str
    change: Callable[[Servable], Awaitable[None]]
    reply: trio.MemorySendChannel[Outcome]


Message: TypeAlias = Load | Unload | Change


class ModelManager:
    """`run` owns the models; the other methods are the address that others call."""

    def __init__(
        self,
        repositories: Repositories,
        loader: ModelLoader,
        *,
        control_mode: ControlMode,
        poll_seconds: float,
        load_models: Sequence[str],
        load_limit: trio.CapacityLimiter,
        load_retries: int = 0,
        memory_budget: int | None = None,
        failures: CallbackFailures | None = None,
    ) -> None:
        self._failures = failures or CallbackFailures()
        self._repositories = repositories
        self._loader = loader
        self._control_mode = control_mode
        self._poll_seconds = poll_seconds
        self._load_models = load_models
        self._load_limit = load_limit
        self._load_retries = load_retries
        self.table = ModelTable(is_namespaced=repositories.is_namespaced)
        # Where there is a memory budget, whoever runs a model leases it first.
        self.residence = (
            None if memory_budget is None else Residence(memory_budget, self.table, load_limit, self._failures)
        )
        self._dependencies = EnsembleDependencies()
        self._load_waits = LoadWaits()
        self._to_inbox, self._inbox = trio.open_memory_channel[Message](0)
        self.is_started = False

    async def run(self, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load the start-up models, then serve until `stop`; then drain and unload everything, and return.

        Started when the start-up loads have ended; those that failed are in the index with their reason.
        """
        await trio.to_thread.run_sync(remove_abandoned)
        async with trio.open_nursery() as models:
            life_cycle = ModelLifeCycle(
                self.table,
                self._loader,
                self._dependencies,
                models,
                retries=self._load_retries,
                residence=self.residence,
                failures=self._failures,
            )
            control = ModelControl(
                life_cycle,
                self.table,
                self._loader,
                self._repositories,
                ComposingModels(self.table, self._loader, self._repositories, self._load_waits),
                self._dependencies,
                load_limit=self._load_limit,
                tasks=models,
                failures=self._failures,
            )
            if self.residence is not None:
                self.residence.attach(control)
            watcher = RepositoryWatcher(
                self._repositories, control, poll_seconds=self._poll_seconds, failures=self._failures
            )
            if self._control_mode is ControlMode.POLL:
                await watcher.begin()
            await self._load_at_start(control)
            async with trio.open_nursery() as calls:
                if self.residence is not None:
                    await calls.start(self.residence.run)
                self.is_started = True
                task_status.started()
                calls.start_soon(self._hear, calls, control)
                if self._control_mode is ControlMode.POLL:
                    calls.start_soon(watcher.run)
                await stop.wait()
                calls.cancel_scope.cancel()  # a load that has not ended is given up
            await life_cycle.retire_all()

    # The address

    def find(self, name: str, version: int = LATEST_VERSION) -> Servable:
        return self.table.find(name, version)

    @contextmanager
    def load_for(self, loading: str, name: str) -> Iterator[None]:
        """Within this block, a load or an unload of `name` runs at the request of a model's code. If that model is
        being loaded itself, `loading` is its name, and it lends its load slot.

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

    def affected_by(self, identifier: str) -> Collection[str] | None:
        """The names of all models of which something else may be true since this one has changed; None are all models.
        An ensemble has labels, and where its tensors may lie, from its composing models."""
        return None if self._dependencies.is_needed(identifier) else {identifier, self.table.split(identifier)[1]}

    def open_sequences(self) -> dict[tuple[str, int], int]:
        """Open sequences by model and version; only of models that have any."""
        found = {(entry.name, model.version): model.open_sequences for entry, model in self.table.ready()}
        return {key: count for key, count in found.items() if count}

    def continues_sequence(self, request: InferenceRequest) -> bool:
        """Whether a request belongs to an open sequence of its model, or of one that this is composed of."""
        if not request.sequence_id or request.sequence_start:
            return False
        models = (
            model for name in self.table.with_needs(request.model_name) for model in self.table.entry(name).models
        )
        return any(model.continues_sequence(request) for model in models)

    def find_all(self, name: str = "", version: int = LATEST_VERSION) -> list[Servable]:
        return list(self.find_each(name, version))

    def find_each(self, name: str = "", version: int = LATEST_VERSION) -> Iterator[Servable]:
        return self.table.find_each(name, version)

    def ready_versions(self, name: str) -> tuple[int, ...]:
        entry = self.table.find_entry(name)
        return () if entry is None else entry.ready_versions or tuple(sorted(entry.evicted))

    def is_ready(self) -> bool:
        """Strict readiness: every model that was explicitly loaded serves."""
        return all(entry.is_as_asked() for entry in self.table.entries.values())

    async def check_ready(self) -> bool:
        """As `is_ready`, also asking the models themselves."""
        unknown: list[Callable[[], Awaitable[bool]]] = []
        for _, model in self.table.ready():
            known = True if model.sleep_level else model.known_readiness()
            if known is False:
                return False
            if known is None:
                unknown.append(model.check_ready)
        return (not unknown or await all_ready(unknown)) and self.is_ready()

    def snapshots(self, in_flight: Mapping[tuple[str, int], int]) -> Iterator[VersionSnapshot]:
        return version_snapshots(self.table, in_flight)

    def loads(self) -> LoadSnapshot:
        """What has become of loads, for the metrics."""
        has_failed = ((entry.name, entry.has_failed) for entry in list(self.table.entries.values()))
        return LoadSnapshot(self.table.loads, dict(self.table.load_failures), has_failed)

    async def index(self, *, ready: bool) -> list[ModelIndex]:
        """The known versions, and by name the models of the repositories that were never loaded; without these for a
        repository that cannot be listed now."""
        found = await trio.to_thread.run_sync(self._repositories.find_models, abandon_on_cancel=True)
        return await run_sliced(self._index(found, ready=ready))

    def _index(self, found: FoundModels, *, ready: bool) -> Sliced[list[ModelIndex]]:
        index: list[ModelIndex] = []
        for identifier in sorted({*found.models, *found.duplicates, *self.table.entries}):
            namespace, name = self.table.split(identifier)
            if identifier in self.table.entries:
                entries = self.table.entries[identifier].index(namespace, name)
            elif identifier in found.duplicates:
                entries = [ModelIndex(name, "", ModelState.UNAVAILABLE.value, DUPLICATE_MODEL)]
            else:
                entries = [ModelIndex(name, namespace=namespace)]
            index += [entry for entry in entries if not ready or entry.state == ModelState.READY.value]
            yield
        return index

    async def load(self, name: str, parameters: LoadParameters) -> None:
        """Returns when the model serves; raises if it does not. Cancelled, the load goes on."""
        self._refuse_unless_explicit()
        if parameters.files and parameters.config is None:
            raise InvalidArgument("Load parameter 'config' must be specified for model file override")
        await self._call(partial(Load, name, parameters))

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Returns when unloading has begun; requests in flight finish. Unknown models count as unloaded. With
        `unload_dependents` an ensemble's composing models follow it, if they were loaded for it alone."""
        self._refuse_unless_explicit()
        await self._call(partial(Unload, name, unload_dependents))

    async def change(self, name: str, change: Callable[[Servable], Awaitable[None]]) -> None:
        """Run something on the latest version of a model that serves; returns when it has ended. Cancelled, it goes on,
        until the server stops."""
        await self._call(partial(Change, name, change))

    def _refuse_unless_explicit(self) -> None:
        if self._control_mode is not ControlMode.EXPLICIT:
            raise Unavailable("explicit model load / unload is not allowed if polling is enabled")

    async def _call(self, message: partial[Load] | partial[Unload] | partial[Change]) -> None:
        reply, answer = trio.open_memory_channel[Outcome](1)
        with answer:
            try:
                await self._to_inbox.send(message(reply=reply))
                outcome = await answer.receive()
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel):
                raise Unavailable("Server exiting") from None
        if outcome is not None:
            raise outcome

    def repositories(self) -> list[ModelRepository]:
        return [ModelRepository(each.path, each.names) for each in self._repositories.registered]

    async def register(self, repository: ModelRepository) -> None:
        if self._control_mode is not ControlMode.EXPLICIT:
            raise Unsupported("repository registration is not allowed if model control mode is not EXPLICIT")
        await trio.to_thread.run_sync(self._repositories.register, repository.path, repository.names)

    async def unregister(self, path: str) -> None:
        if self._control_mode is not ControlMode.EXPLICIT:
            raise Unsupported("repository unregistration is not allowed if model control mode is not EXPLICIT")
        await trio.to_thread.run_sync(self._repositories.unregister, path)

    # The actor

    async def _hear(self, calls: trio.Nursery, control: ModelControl) -> None:
        with self._inbox:
            async for message in self._inbox:
                calls.start_soon(self._answer, message, control)

    async def _answer(self, message: Message, control: ModelControl) -> None:
        with message.reply:
            outcome: Outcome = None
            try:
                match message:
                    case Load(name, parameters):
                        (await control.load(name, parameters)).is_explicit = True
                    case Unload(name, unload_dependents):
                        await control.unload(name, unload_dependents=unload_dependents)
                    case Change(name, change):
                        await self._change(name, change)
            except ServerError as error:
                outcome = error
            with suppress(trio.BrokenResourceError):  # the caller has gone
                message.reply.send_nowait(outcome)

    async def _change(self, name: str, change: Callable[[Servable], Awaitable[None]]) -> None:
        """A defect fails the call that hits it, and nothing else."""
        try:
            await change(self.find(name))
        except ServerError:
            raise
        except Exception as error:
            self._failures.note("control", error, f"model '{name}' could not be changed")
            raise Internal(f"model '{name}': {type(error).__name__}: {error}") from None
        finally:
            if (entry := self.table.entries.get(name) or self.table.find_entry(name)) is not None:
                self.table.changed(entry.name)

    async def _load_at_start(self, control: ModelControl) -> None:
        found = await trio.to_thread.run_sync(self._repositories.find_models, abandon_on_cancel=True)
        names = sorted({*found.models, *found.duplicates})
        if self._control_mode is ControlMode.EXPLICIT and "*" not in self._load_models:
            names = [
                await trio.to_thread.run_sync(self._repositories.resolve, name, "", abandon_on_cancel=True)
                for name in dict.fromkeys(self._load_models)
            ]
        needs = {name: await control.needs(name) for name in names}
        tried: set[str] = set()
        for level in load_levels(names, needs):
            async with trio.open_nursery() as loads:
                for name in level:
                    self.table.entry(name).is_explicit = True
                    loads.start_soon(control.load_if_absent, name, frozenset(tried))
            tried.update(level)
