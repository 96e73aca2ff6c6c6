"""The core: implements `protocol.core.InferenceCore` on the model manager and its servables.

Flow: edge → [core] → model → scheduler → model instance. The core itself is thin: it finds the model, says whether the
server takes requests, and asks others what models say of themselves (`descriptions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from actors.cache.response_cache import ResponseCache
from actors.core.descriptions import model_metadata, model_statistics, server_metadata
from actors.core.in_flight import InFlight
from actors.core.model_calls import ModelCalls
from actors.core.settings import CoreSettings, model_manager
from actors.instance.rate_limiter import RateLimiter
from actors.lifecycle.manager import ControlMode, ModelManager
from actors.lifecycle.residence import Residence, ResidenceSnapshot
from actors.lifecycle.snapshots import LoadSnapshot
from actors.lifecycle.table import ModelTable
from actors.metrics.custom import CustomMetrics
from actors.metrics.statistics import BatchWatcher, VersionSnapshot
from actors.model.request_counts import RequestCounts
from actors.model.servable import Servable
from actors.model.submission import Submission, refused, submit_and_wait
from backends.devices.devices import Devices
from backends.devices.machine import compute_capabilities
from backends.registry import BackendRegistry
from backends.server_resources import server_resources
from backends.services import BackendServices
from protocol.core import (
    LoadParameters,
    ModelIndex,
    ModelMetadata,
    ModelRepository,
    ModelStatistics,
    QueueRoom,
    ReplyChannel,
    Respond,
    ServerMetadata,
)
from protocol.errors import Internal, NotFound, ServerError, Unavailable, Unsupported
from protocol.failures import CallbackFailures
from protocol.gen_ai import GenAi
from protocol.jobs.execution import ModelLoad
from protocol.media.fetcher import MediaFetcher
from protocol.messages import LATEST_VERSION, InferenceRequest, InferenceResponse
from protocol.text.model import TextFacts, TextModel
from repository.agents.registry import AgentRegistry
from repository.json_form import to_json_form

__all__ = ["ControlMode", "CoreSettings", "ServerCore"]


class ServerCore:
    """The models of one server. `run` owns them all; the other methods may be called while it runs."""

    def __init__(
        self,
        settings: CoreSettings,
        registry: BackendRegistry,
        cache: ResponseCache | None = None,
        custom_metrics: CustomMetrics | None = None,
        agents: AgentRegistry | None = None,
        devices: Devices | None = None,
        failures: CallbackFailures | None = None,
        gen_ai: GenAi | None = None,
        media: MediaFetcher | None = None,
    ) -> None:
        self._failures = failures or CallbackFailures()
        self._gen_ai = gen_ai
        self._media = media
        self._settings = settings
        self._cache = cache
        self.in_flight = InFlight(tracks_all=settings.tracks_all_requests)
        self._without_id = self.in_flight.without_id
        self._fed: list[Servable] = []  # that have been submitted what `flush` is for
        # Called with the name of each of them, and may submit more. It must not raise.
        self.before_flush: Callable[[str], None] | None = None
        # Called whenever what edges may keep of models, as their metadata, may have changed, with the names by which
        # those are asked for; None are all. It must not raise.
        self.models_changed: Callable[[Collection[str] | None], None] = _nobody_is_told
        self._accepted = RequestCounts()
        self.custom_metrics = custom_metrics if custom_metrics is not None else CustomMetrics()
        self._registry = registry
        self._agents = agents if agents is not None else AgentRegistry()
        self.devices = devices if devices is not None else Devices()
        self._manager: ModelManager | None = None
        self._is_unready = False
        # Set by whoever starts more than models: not ready before that is there, too, though requests are taken.
        self.holds_readiness = False
        self._is_stopping = False
        self._refuses = True  # some requests or all: until the models are loaded, and while the server stops
        self._finishes_sequences = False
        self._stop = trio.Event()
        self._metadata = server_metadata(settings.server_id)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Started when the start-up loads have ended, well or badly; returns when stopped, drained and unloaded."""
        settings = self._settings
        limiter = None if settings.rate_limit_resources is None else RateLimiter(settings.rate_limit_resources)
        capabilities = await trio.to_thread.run_sync(compute_capabilities)
        self.devices.has_gpus = bool(capabilities)
        async with server_resources() as resources:
            manager = model_manager(
                settings,
                self._registry,
                capabilities,
                limiter,
                cache=self._cache,
                services=BackendServices(
                    ModelCalls(self._running, limiter), self.custom_metrics, self._failures, self._gen_ai, self._media
                ),
                agents=self._agents,
                devices=self.devices,
                resources=resources,
            )
            self._manager = manager
            manager.table.changed = self._model_changed
            try:
                await manager.run(self._stop, task_status=task_status)
            finally:
                self._is_unready = self._is_stopping = self._refuses = True
                self._manager = None
                self.models_changed(None)

    def turn_unready(self) -> None:
        """Report not ready from now on, and go on answering: load balancers then send requests elsewhere."""
        self._is_unready = True

    def stop(self, *, finishes_sequences: bool = False) -> None:
        """Refuse new work, finish what was accepted, then unload; `run` returns when that is done. With
        `finishes_sequences` open sequences go on to their end, for which `is_answered` has to be asked."""
        self._is_unready = self._is_stopping = self._refuses = True
        self._finishes_sequences = finishes_sequences
        self.models_changed(None)
        self._stop_if_done()

    def _model_changed(self, identifier: str) -> None:
        self.models_changed(None if self._manager is None else self._manager.affected_by(identifier))

    def is_answered(self) -> bool:
        """Whether everything that was accepted before `stop` is answered. A sequence that times out sends no event, so
        this is polled."""
        self._stop_if_done()
        return self._stop.is_set()

    async def wait_answered(self) -> None:
        """Wait until everything that was accepted before `stop` is answered."""
        await self._stop.wait()

    def accepted(self) -> Mapping[tuple[str, int], int]:
        """How many requests are in flight, by model and version."""
        return self._accepted.by_version()

    def _stop_if_done(self) -> None:
        """No model is unloaded before the last request has ended, which may still call any of them."""
        if self._is_stopping and not self._accepted and not (self._finishes_sequences and self.open_sequences()):
            self._stop.set()

    def open_sequences(self) -> Mapping[tuple[str, int], int]:
        """How many sequences have begun and not ended, by model and version; models without any are left out."""
        return {} if self._manager is None else self._manager.open_sequences()

    def snapshots(self) -> Iterable[VersionSnapshot]:
        """A snapshot of every loaded version, for the metrics; each is made when it is asked for."""
        return () if self._manager is None else self._manager.snapshots(self._accepted.by_version())

    def loads(self) -> LoadSnapshot:
        """What has become of loads, for the metrics."""
        return LoadSnapshot() if self._manager is None else self._manager.loads()

    @property
    def table(self) -> ModelTable:
        """The models and their states; empty while the core does not run. Others only read it."""
        return ModelTable() if self._manager is None else self._manager.table

    def residence(self) -> ResidenceSnapshot | None:
        """How the memory budget is used, for the metrics; None where there is none."""
        residence = None if self._manager is None else self._manager.residence
        return None if residence is None else residence.snapshot()

    def load_of(self, name: str) -> ModelLoad:
        """How busy a model is, for jobs; nothing is known of one that does not serve."""
        in_flight = self._accepted.of_model(name)
        try:
            model = self._find(name, LATEST_VERSION)
        except ServerError:
            return ModelLoad(in_flight, 0)
        if model.is_decoupled:
            return ModelLoad(in_flight, 0)
        instances = sum(group.count for group in model.config.instance_group)
        return ModelLoad(in_flight, instances * max(model.config.max_batch_size, 1), max(instances, 1))

    def watch_batches(self, name: str, watcher: BatchWatcher) -> bool:
        """Have it called with each batch that a version of this model has run, in place of any other, until it is
        unloaded; it must not raise. Returns whether there are versions for which that is new."""
        manager = self._manager
        entry = None if manager is None else manager.table.find_entry(name)
        is_new = False
        for model in () if entry is None else entry.models:
            if model.statistics.watcher is not watcher:
                model.statistics.watcher = watcher
                is_new = True
        return is_new

    def unwatch_batches(self, name: str, watcher: BatchWatcher) -> None:
        manager = self._manager
        entry = None if manager is None else manager.table.find_entry(name)
        for model in () if entry is None else entry.models:
            if model.statistics.watcher is watcher:
                model.statistics.watcher = None

    def waiting_for(self, name: str) -> int:
        """How many requests wait in the queues of a model's versions."""
        manager = self._manager
        entry = None if manager is None else manager.table.find_entry(name)
        return 0 if entry is None else sum(model.pending_count for model in entry.models)

    def lowest_priority(self, name: str, version: int = LATEST_VERSION) -> int:
        """The last of a model's priority levels; 0 where it has none. Raises as `is_decoupled`."""
        batching = self._find(name, version).config.dynamic_batching
        return 0 if batching is None else batching.priority_levels

    # protocol.core.InferenceCore

    def is_live(self) -> bool:
        self._refuse_if_stopping()
        return True

    def is_ready(self) -> bool:
        return self._has_started() and (not self._settings.strict_readiness or self._running().is_ready())

    async def check_ready(self) -> bool:
        return self._has_started() and (not self._settings.strict_readiness or await self._running().check_ready())

    def _has_started(self) -> bool:
        self._refuse_if_unready()
        return self._manager is not None and self._manager.is_started and not self.holds_readiness

    async def check_model_ready(self, name: str, version: int = LATEST_VERSION) -> bool:
        self._refuse_if_unready()
        return await self._find(name, version).check_ready()

    def is_model_ready(self, name: str, version: int = LATEST_VERSION) -> bool:
        return self._find(name, version).is_ready

    def server_metadata(self) -> ServerMetadata:
        return self._metadata

    def model_metadata(self, name: str, version: int = LATEST_VERSION) -> ModelMetadata:
        manager = self._running()
        model = self._find(name, version)
        versions = manager.ready_versions(name) if version == LATEST_VERSION else (model.version,)
        return model_metadata(name, model, versions)

    def model_config(self, name: str, version: int = LATEST_VERSION) -> dict[str, Any]:
        return to_json_form(self._find(name, version).config)

    def model_statistics(self, name: str = "", version: int = LATEST_VERSION) -> Sequence[ModelStatistics]:
        return list(self.each_statistics(name, version))

    def each_statistics(self, name: str = "", version: int = LATEST_VERSION) -> Iterator[ModelStatistics]:
        return map(model_statistics, self._running().find_each(name, version))

    async def repository_index(self, *, ready: bool = False) -> Sequence[ModelIndex]:
        return await self._running().index(ready=ready)

    async def load_model(self, name: str, parameters: LoadParameters = LoadParameters()) -> None:  # noqa: B008 (frozen)
        await self._running().load(name, parameters)

    async def unload_model(self, name: str, *, unload_dependents: bool = False) -> None:
        await self._running().unload(name, unload_dependents=unload_dependents)

    async def load_adapter(self, name: str, adapter: str, path: str, *, replace: bool = False) -> None:
        folders = self._adapter_folders()
        await self._running().change(name, lambda model: model.add_adapter(adapter, path, folders, replace=replace))

    async def unload_adapter(self, name: str, adapter: str) -> None:
        self._adapter_folders()
        await self._running().change(name, lambda model: model.remove_adapter(adapter))

    def _adapter_folders(self) -> Sequence[Path]:
        folders = self._settings.adapter_folders
        if not folders:
            raise Unsupported("Loading and unloading LoRA adapters requires --openai-lora-path=<folder>")
        return folders

    def sleeping(self) -> Mapping[str, bool]:
        latest = {model.name: model for model in sorted(self._running().find_all(), key=lambda model: model.version)}
        return {name: model.sleep_level > 0 for name, model in latest.items() if model.can_sleep}

    async def sleep(self, name: str, level: int = 1) -> None:
        await self._running().change(name, lambda model: model.sleep(level))

    async def wake(self, name: str) -> None:
        await self._running().change(name, lambda model: model.wake())

    async def reset_prefix_cache(self, name: str) -> None:
        await self._running().change(name, lambda model: model.reset_prefix_cache())

    def repositories(self) -> Sequence[ModelRepository]:
        return self._running().repositories()

    async def register_repository(self, repository: ModelRepository) -> None:
        await self._running().register(repository)

    async def unregister_repository(self, path: str) -> None:
        await self._running().unregister(path)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        return await submit_and_wait(self.submit, request)

    def submit(self, request: InferenceRequest, reply_to: ReplyChannel, *, later: bool = False) -> Submission:
        manager = self._manager
        try:
            if manager is None or self._refuses:
                manager = self._taking(request)
            model = manager.table.find(request.model_name, request.model_version)
            if manager.residence is None:
                submission = model.submit(request, reply_to, later)
            else:
                submission = manager.residence.submit(request, reply_to, self._run_leased)
        except ServerError as error:
            return refused(request, reply_to, error.with_traceback(None))
        except Exception as error:
            self._failures.note("request", error, f"a request to model '{request.model_name}' could not be submitted")
            defect = Internal(
                f"the request to model '{request.model_name}' failed unexpectedly; the server's log has the details"
            )
            return refused(request, reply_to, defect)
        submission.acceptance = self
        submission.accepted = self._accepted.begin(request.model_name, model.version)
        if request.id:
            self.in_flight.add(submission)
        elif (without_id := self._without_id) is not None:
            without_id[submission] = 0
        if later and model not in self._fed:
            self._fed.append(model)
        return submission

    def flush(self) -> None:
        if self.before_flush is not None:
            for model in tuple(self._fed):
                self.before_flush(model.name)
        fed, self._fed = self._fed, []
        for model in fed:
            try:
                model.flush()
            except Exception as error:
                self._failures.note("scheduler", error, f"model '{model.name}' could not be given its requests")
                with self._failures.noted("scheduler", f"model '{model.name}' could not be given its requests again"):
                    model.flush()  # else they would wait for whoever comes next

    def answered(self, submission: Submission) -> None:
        """Implements `actors.model.submission.Acceptance`."""
        request = submission.request
        if request.id:
            self.in_flight.remove(submission)
        elif (without_id := self._without_id) is not None:
            del without_id[submission]
        count = submission.accepted
        assert count is not None
        count.waiting -= 1
        if self._is_stopping and not count.waiting:
            self._stop_if_done()

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        manager = self._taking(request)
        model = manager.find(request.model_name, request.model_version)
        residence = manager.residence
        call = (
            model.infer_stream(request, respond)
            if residence is None
            else self._stream_leased(residence, request, respond)
        )
        count = self._accepted.begin(request.model_name, model.version)
        try:
            if request.id or self.in_flight.tracks_all:
                return await self.in_flight.run(request, model.version, call)
            return await call
        finally:
            count.waiting -= 1
            if self._is_stopping and not count.waiting:
                self._stop_if_done()

    def _taking(self, request: InferenceRequest) -> ModelManager:
        """The models, if they take this request: none is taken before they are loaded, and while the server stops only
        those of open sequences.

        Raises:
            Unavailable: they do not.
        """
        manager = self._manager
        if manager is None or not manager.is_started:
            raise self._not_running()
        if self._is_stopping and not (
            self._finishes_sequences and not self._stop.is_set() and manager.continues_sequence(request)
        ):
            raise self._not_running()
        self._refuses = self._is_stopping
        return manager

    async def _run_leased(self, request: InferenceRequest) -> InferenceResponse:
        """While the model is leased under the memory budget; it may have been loaded for that."""
        return await self._find(request.model_name, request.model_version).infer(request)

    async def _stream_leased(self, residence: Residence, request: InferenceRequest, respond: Respond) -> bool:
        async with residence.lease(request):
            return await self._find(request.model_name, request.model_version).infer_stream(request, respond)

    def cancel(self, name: str, request_id: str, version: int = LATEST_VERSION) -> int:
        found = self.in_flight.cancel(name, request_id, version)
        if not found:
            self._find(name, version)
        return found

    def is_decoupled(self, name: str, version: int = LATEST_VERSION) -> bool:
        return self._find(name, version).is_decoupled

    def is_batching(self, name: str, version: int = LATEST_VERSION) -> bool:
        return self._find(name, version).config.is_batching

    def takes_device_tensors(self, name: str, version: int = LATEST_VERSION) -> bool:
        return self._find(name, version).takes_device_tensors

    def takes_shared_tensors(self, name: str, version: int = LATEST_VERSION) -> bool:
        return self._find(name, version).takes_shared_tensors

    def labels(self, name: str, version: int, output: str) -> Sequence[str]:
        return self._find(name, version).labels.get(output, ())

    async def text_model(self, name: str, version: int = LATEST_VERSION) -> TextModel:
        text = self._find(name, version).text
        if text is None:
            raise Unsupported(
                f"model '{name}' has no text: expected a STRING input 'text_input' and a STRING output 'text_output', "
                f"or the configuration's parameters 'openai_text_input' and 'openai_text_output' (for embeddings: "
                f"'openai_embedding_input' and 'openai_embedding_output', or a 'tokenizer.json' beside an export)"
            )
        return text

    def queue_room(self, name: str, version: int = LATEST_VERSION) -> QueueRoom | None:
        return self._find(name, version).queue_room()

    async def text_models(self) -> Sequence[TextFacts]:
        latest: dict[str, TextModel] = {}
        for model in sorted(self._running().find_all(), key=lambda model: (model.name, model.version)):
            if (text := model.text) is not None:
                latest[text.name] = text
        return list(latest.values())

    def _find(self, name: str, version: int) -> Servable:
        """A model that serves; while the server starts or stops, that is the reason given and not that the model is not
        there yet, or gone."""
        manager = self._manager
        if manager is None:
            raise self._not_running()
        try:
            return manager.table.find(name, version)
        except NotFound:
            self._refuse_if_stopping()
            if not manager.is_started:
                raise self._not_running() from None
            raise

    def _running(self) -> ModelManager:
        if self._manager is None:
            raise self._not_running()
        return self._manager

    def _not_running(self) -> Unavailable:
        return Unavailable("Server exiting" if self._is_unready else "Server not ready")

    def _refuse_if_stopping(self) -> None:
        if self._is_stopping:
            raise self._not_running()

    def _refuse_if_unready(self) -> None:
        if self._is_unready:
            raise self._not_running()


def _nobody_is_told(names: Collection[str] | None) -> None:
    pass
