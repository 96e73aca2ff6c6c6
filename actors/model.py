"""Model: one loaded version, with its scheduler, its instances and its statistics.

Flow: core → [model] → scheduler → model instance.
Started and owned by the model manager; restarts an instance that has died, with back-off.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress

import trio

from actors.batching_policy import BatchingPolicy, DirectPolicy, DynamicBatchingPolicy
from actors.messages import Abandon, Drain, QueuedRequest, Reply, SchedulerAddress, Submit
from actors.model_instance import ModelInstance
from actors.ordered_replies import OrderedReplies
from actors.request_check import RequestChecker
from actors.response_stream import BUFFERED_RESPONSES
from actors.restart_backoff import RestartBackoff
from actors.scheduler import Scheduler
from actors.statistics import VersionStatistics, latency_histograms
from backends.interface import Backend, InstanceSpec
from protocol.core import Respond
from protocol.errors import Internal, ServerError, Unavailable, Unsupported
from protocol.messages import InferenceRequest, InferenceResponse
from repository.model_config import ModelConfig

logger = logging.getLogger("trioton.model")


class Model:
    """One version of a model. `run` loads it and serves until it is drained; the other methods are its address."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        backend: type[Backend],
        specs: Sequence[InstanceSpec],
        labels: Mapping[str, Sequence[str]] | None = None,
        *,
        has_histograms: bool = True,
    ) -> None:
        self.config = config
        self.version = version
        self.labels = labels or {}
        self.statistics = VersionStatistics(histograms=latency_histograms(config) if has_histograms else None)
        self._backend = backend
        self._specs = specs
        self._checker = RequestChecker(config)
        batching = config.dynamic_batching
        policy: BatchingPolicy = (
            DirectPolicy()
            if batching is None
            else DynamicBatchingPolicy(batching, max_batch_size=config.max_batch_size)
        )
        self._scheduler = Scheduler(
            config.name,
            policy,
            self.statistics,
            OrderedReplies() if batching is not None and batching.preserve_ordering else None,
            is_decoupled=config.is_decoupled,
        )
        self._address: SchedulerAddress | None = None
        self._drained = trio.Event()
        # One scope for each instance that is loading again after a death: a drain does not wait for those.
        self._restarts: set[trio.CancelScope] = set()

    @property
    def is_ready(self) -> bool:
        """Whether all instances are loaded and alive."""
        return self._scheduler.live_count == len(self._specs) and not self._drained.is_set()

    @property
    def pending_count(self) -> int:
        return self._scheduler.pending_count

    @property
    def is_decoupled(self) -> bool:
        return self.config.is_decoupled

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Check a request, have it run, return its answer or raise its error.

        Cancelled, it tells the scheduler, which drops the request if it still waits.
        """
        if self.is_decoupled:
            raise Unsupported(f"model '{self.config.name}' is decoupled: it answers streaming requests only")
        with self._submitted(request, buffered=1) as (_, answers):
            result = await answers.receive()
        if isinstance(result, ServerError):
            raise result.with_traceback(None)  # one error may answer many requests
        return result

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        """As `protocol.core.InferenceCore.infer_stream`. Cancelled, it tells the scheduler; the model can see that."""
        if not self.is_decoupled:
            await respond(await self.infer(request))
            return True
        is_final = False
        with self._submitted(request, buffered=BUFFERED_RESPONSES) as (item, answers):
            async for result in answers:
                if isinstance(result, ServerError):  # refused before it ran
                    raise result.with_traceback(None)
                is_final = result.is_final
                await respond(result)
        if item.failure is not None:
            raise item.failure.with_traceback(None)
        return is_final

    def _submitted(self, request: InferenceRequest, *, buffered: int) -> _Submission:
        if self._address is None:
            raise Unavailable(f"model '{self.config.name}' is not loaded")
        checked = self._checker.check(request)
        reply, answers = trio.open_memory_channel[Reply](buffered)
        item = QueuedRequest(request, checked.batch_size, checked.shape_key, trio.current_time(), reply)
        self._address.tell(Submit(item))
        return _Submission(self._address, item, answers)

    def drain(self) -> None:
        """Accept no more requests, finish those that are here, unload; `run` then returns."""
        if self._address is not None:
            with suppress(Unavailable):
                self._address.tell(Drain())

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Started when all instances are loaded; a failed load is raised as one ServerError, after clean-up."""
        try:
            async with trio.open_nursery() as nursery:
                self._address = await nursery.start(self._schedule)
                async with trio.open_nursery() as starting:
                    for spec in self._specs:
                        starting.start_soon(nursery.start, self._supervise, spec)
                task_status.started()
        except BaseExceptionGroup as group:
            _, rest = group.split(Exception)
            if rest is not None:  # Cancelled, KeyboardInterrupt: not ours to sum up
                raise
            raise self._first_error(group) from group

    async def _schedule(self, *, task_status: trio.TaskStatus[SchedulerAddress]) -> None:
        try:
            await self._scheduler.run(task_status=task_status)
        finally:
            self._drained.set()
            for restart in self._restarts:
                restart.cancel()

    async def _supervise(self, spec: InstanceSpec, *, task_status: trio.TaskStatus[None]) -> None:
        """Keep one instance running until the scheduler has drained. Only the first load's failure is raised."""
        assert self._address is not None  # the scheduler is started first
        await self._instance(spec, self._address).run(task_status=task_status)
        backoff = RestartBackoff()
        born = trio.current_time()
        while not self._drained.is_set():
            delay = backoff.delay(lived_seconds=trio.current_time() - born)
            logger.warning("model instance '%s' has died; starting it again in %g s", spec.name, delay)
            with trio.move_on_after(delay):
                await self._drained.wait()
                return
            born = trio.current_time()
            try:
                await self._run_again(spec, self._address)
            except Exception as error:
                logger.error("model instance '%s' failed to start again: %s", spec.name, error)

    async def _run_again(self, spec: InstanceSpec, address: SchedulerAddress) -> None:
        with trio.CancelScope() as restart:
            self._restarts.add(restart)
            try:
                await self._instance(spec, address).run(task_status=_Loaded(self._restarts, restart))
            finally:
                self._restarts.discard(restart)

    def _instance(self, spec: InstanceSpec, address: SchedulerAddress) -> ModelInstance:
        return ModelInstance(spec.name, self._backend(spec), address, self.is_decoupled)

    def _first_error(self, group: BaseExceptionGroup[BaseException]) -> ServerError:
        """The error that tells most: a ServerError if there is one, else the first, named."""
        leaves = list(_leaves(group))
        for leaf in leaves:
            if isinstance(leaf, ServerError):
                return leaf
        logger.error("model '%s' failed to load", self.config.name, exc_info=leaves[0])
        return Internal(f"{type(leaves[0]).__name__}: {leaves[0]}")


class _Submission:
    """A checked request in the scheduler's hands, given up if the block is left by an exception: cancelled, or the
    client cannot be answered any more. (A class, since a generator would double its cost on the main road.)"""

    __slots__ = ("_address", "_answers", "_item")

    def __init__(
        self, address: SchedulerAddress, item: QueuedRequest, answers: trio.MemoryReceiveChannel[Reply]
    ) -> None:
        self._address = address
        self._item = item
        self._answers = answers

    def __enter__(self) -> tuple[QueuedRequest, trio.MemoryReceiveChannel[Reply]]:
        return self._item, self._answers

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._answers.close()
        if kind is not None:
            self._item.is_cancelled = True
            with suppress(Unavailable):
                self._address.tell(Abandon(self._item))


class _Loaded:
    """Takes a restarted instance off the list of those that a drain does not wait for, once it serves."""

    def __init__(self, restarts: set[trio.CancelScope], restart: trio.CancelScope) -> None:
        self._restarts = restarts
        self._restart = restart

    def started(self, value: None = None) -> None:
        self._restarts.discard(self._restart)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found
