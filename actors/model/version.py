"""Base classes of the three kinds of `actors.model.servable.Servable`.

Flow: core → [model version] → scheduler, composing models or targets.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import trio

from actors.cache.response_cache import VersionCache
from actors.mail.messages import StoppedAccepting, stopped_accepting
from actors.metrics.latencies import HistogramDetail, LatencySummaries, batch_size_bounds, latency_histograms
from actors.metrics.statistics import VersionStatistics
from actors.model.deadline import within_timeout
from actors.model.deferred import DeferredRequests
from actors.model.servable import Servable
from actors.model.submission import Submission, refused, submit_and_wait
from actors.model.supervisor import InstanceStatus
from actors.scheduling.request_check import RequestChecker
from protocol.core import MemoryUsage, QueueRoom, ReplyChannel, Respond
from protocol.datatypes import DataType
from protocol.errors import Decoupled, ServerError, Unavailable, Unsupported
from protocol.failures import CallbackFailures
from protocol.messages import InferenceRequest, InferenceResponse
from protocol.sync.sliced import run_sliced
from protocol.tensors.device_tensor import bring_to_host
from protocol.text.model import TextModel
from repository.model_config import ModelConfig


class ModelVersion(abc.ABC):
    """Implements `Servable` but for what a subclass has to say. What concerns instances or sequences is as for a
    version that has neither."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        labels: Mapping[str, Sequence[str]],
        *,
        histograms: HistogramDetail = HistogramDetail.FEW,
        summary_quantiles: Sequence[float] = (),
        text: TextModel | None = None,
    ) -> None:
        self.config = config
        self.version = version
        self.labels = labels
        self._text = text
        self.is_decoupled = config.is_decoupled
        self.takes_shared_tensors = False
        self.statistics = VersionStatistics(
            histograms=latency_histograms(config, histograms),
            summaries=LatencySummaries(summary_quantiles) if summary_quantiles else None,
            batch_size_bounds=batch_size_bounds(config, histograms),
        )
        self.is_evicted = False
        self.predecessor: Servable | None = None
        self.find_successor: Callable[[InferenceRequest], Servable] | None = None
        self._is_over = False
        self._checker = RequestChecker(config)
        self._takes_texts = any(tensor.data_type is DataType.BYTES for tensor in config.input)

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def text(self) -> TextModel | None:
        return self._text

    @property
    @abc.abstractmethod
    def is_ready(self) -> bool: ...

    def known_readiness(self) -> bool | None:
        """Where it is made of other models these may have to be asked."""
        return None if self.is_ready else False

    @abc.abstractmethod
    async def check_ready(self) -> bool: ...

    @property
    @abc.abstractmethod
    def takes_device_tensors(self) -> bool: ...

    @property
    @abc.abstractmethod
    def queue_takes_timeout(self) -> bool: ...

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def open_sequences(self) -> int:
        return 0

    @property
    def pending_count(self) -> int:
        return 0

    @property
    def has_work(self) -> bool:
        return self.open_sequences > 0 or self.pending_count > 0

    @property
    def source(self) -> object:
        return None

    @property
    def spec_count(self) -> int:
        return 0

    def instances(self) -> Sequence[InstanceStatus]:
        return ()

    @property
    def gpu(self) -> int | None:
        return None

    @property
    def can_update_instances(self) -> bool:
        return False

    def continues_sequence(self, request: InferenceRequest) -> bool:
        return False

    def follow(self, replaced: Servable) -> None:
        last = replaced
        while last.predecessor is not None:
            last = last.predecessor
        last.predecessor, self.predecessor = self.predecessor, replaced

    def check_composing(self) -> ServerError | None:
        return None

    async def update_instances(self, wanted: Servable) -> None:
        raise NotImplementedError

    async def add_adapter(self, name: str, path: str, folders: Sequence[Path], *, replace: bool) -> None:
        raise self._without("adapters")

    async def remove_adapter(self, name: str) -> None:
        raise self._without("adapters")

    @property
    def can_sleep(self) -> bool:
        return False

    @property
    def sleep_level(self) -> int:
        return 0

    async def sleep(self, level: int) -> None:
        raise self._without("sleep")

    async def wake(self) -> None:
        raise self._without("sleep")

    async def reset_prefix_cache(self) -> None:
        raise self._without("prefix cache")

    def _without(self, what: str) -> Unsupported:
        return Unsupported(f"model '{self.name}' has no {what}: it has no engine of its own")

    def continue_from(self, evicted: Servable) -> None:
        self.statistics.continue_from(evicted.statistics)

    def memory_usage(self) -> list[MemoryUsage]:
        return []

    def instance_states(self) -> Mapping[str, int]:
        return {}

    @property
    def restarts(self) -> int:
        return 0

    def arena_bytes(self) -> int:
        return 0

    def queue_room(self) -> QueueRoom | None:
        return None

    def version_label(self, *, is_only: bool) -> int:
        return self.version

    def routed(self) -> Sequence[tuple[str, str, str, int]]:
        return ()

    def check(self, request: InferenceRequest) -> None:
        self._checker.check(request)

    @abc.abstractmethod
    def drain(self, *, lets_sequences_end: bool = False) -> None: ...

    @abc.abstractmethod
    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None: ...

    # Requests.

    @abc.abstractmethod
    def submit(self, request: InferenceRequest, reply_to: ReplyChannel, later: bool = False) -> Submission: ...

    @abc.abstractmethod
    def flush(self) -> None: ...

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        return await submit_and_wait(self.submit, request)

    @abc.abstractmethod
    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool: ...


class RunningVersion(ModelVersion):
    """One that runs requests itself, by instances or steps: what a request may have to wait for before that, and where
    it goes if another version is to answer it."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        labels: Mapping[str, Sequence[str]],
        *,
        histograms: HistogramDetail,
        summary_quantiles: Sequence[float],
        cache: VersionCache | None,
        failures: CallbackFailures | None,
        text: TextModel | None,
    ) -> None:
        super().__init__(config, version, labels, histograms=histograms, summary_quantiles=summary_quantiles, text=text)
        self._cache = cache
        self.statistics.has_cache = cache is not None
        self._failures = failures or CallbackFailures()
        self._deferred = DeferredRequests(f"model '{config.name}'", self._failures)

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        if self.predecessor is not None and (before := self._where_it_began(request)) is not None:
            return await before.infer_stream(request, respond)
        if not self.is_decoupled:
            await respond(await self.infer(request))
            return True
        await self._prepare(request)
        call = self._run_stream(request, respond)
        try:
            if request.timeout_microseconds and not self.queue_takes_timeout:
                return await within_timeout(request, call)
            return await call
        except StoppedAccepting as refusal:  # before any response
            successor = self._successor(request, refusal)
        return await successor.infer_stream(request, respond)

    @abc.abstractmethod
    async def _run(self, request: InferenceRequest) -> InferenceResponse:
        """The response to a request that waits for nothing else."""

    @abc.abstractmethod
    async def _run_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        """As `infer_stream`, for a request to a decoupled model that waits for nothing else."""

    def _refuse_decoupled(self, request: InferenceRequest, reply_to: ReplyChannel) -> Submission:
        error = Decoupled(f"model '{self.config.name}' is decoupled: it answers streaming requests only")
        return refused(request, reply_to, error)

    def _defer(self, request: InferenceRequest, reply_to: ReplyChannel) -> Submission:
        """Run a request in a task, with all that it has to wait for."""
        if self._deferred.is_open:
            return self._deferred.submit(request, reply_to, self._answer)
        if self.is_over:
            return self._pass_on(request, reply_to, stopped_accepting())
        return refused(request, reply_to, self._not_loaded())

    async def _answer(self, request: InferenceRequest) -> InferenceResponse:
        """In a task: the response to a request, after what it has to wait for."""
        await self._prepare(request)
        # What lies on a device is not cached, as in Triton: only the host could read it.
        if self._cache is None or request.has_device_inputs or request.device_outputs:
            call = self._run(request)
        else:
            call = self._cache.infer(request, self._run, self.statistics)
        try:
            if request.timeout_microseconds and not self.queue_takes_timeout:
                return await within_timeout(request, call)
            return await call
        except StoppedAccepting as refusal:
            successor = self._successor(request, refusal)
        return await successor.infer(request)

    async def _prepare(self, request: InferenceRequest) -> None:
        """Do what takes long before the request is checked."""
        if request.has_device_inputs and not self.takes_device_tensors:
            await trio.to_thread.run_sync(bring_to_host, request)
        if self._takes_texts and self._checker.has_long_texts(request):
            await run_sliced(self._checker.look_at_texts(request))

    def _pass_on(self, request: InferenceRequest, reply_to: ReplyChannel, refusal: StoppedAccepting) -> Submission:
        """Forward to the version that takes what this one takes no more, if there is one."""
        try:
            successor = self._successor(request, refusal)
        except ServerError as error:
            return refused(request, reply_to, error)
        return successor.submit(request, reply_to)

    def _successor(self, request: InferenceRequest, refusal: StoppedAccepting) -> Servable:
        """The version that takes requests that this one takes no more; without one the refusal is raised."""
        successor = None if self.find_successor is None else self.find_successor(request)
        if successor is None or successor is self:
            raise refusal
        return successor

    def _where_it_began(self, request: InferenceRequest) -> Servable | None:
        """The previous version, where the request's sequence is open."""
        before = self.predecessor
        while before is not None and not before.continues_sequence(request):
            before = before.predecessor
        if self.predecessor is not None and self.predecessor.is_over:
            self.predecessor = self.predecessor.predecessor
        return before

    def _not_loaded(self) -> Unavailable:
        return Unavailable(f"model '{self.config.name}' is not loaded")
