"""Model: one loaded version, with its scheduler, its instances and its statistics.

Flow: core → [model] → scheduler → model instance.
Started and owned by the model manager; owns the scheduler, and the instances by way of `model/instance_pool.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import trio

from actors.cache.response_cache import VersionCache
from actors.ensemble.composition import Composition
from actors.ensemble.runner import EnsembleRunner
from actors.instance.rate_limiter import ModelLimits
from actors.instance.response_stream import BUFFERED_RESPONSES
from actors.mail.messages import Drain, QueuedRequest, SchedulerAddress, StoppedAccepting, Submit
from actors.mail.reply_slot import Reply, ReplySlot
from actors.mail.turns import Turn, TurnOrder
from actors.mail.waiting_responses import WaitingResponses
from actors.metrics.latencies import LatencySummaries, latency_histograms
from actors.metrics.statistics import VersionStatistics
from actors.model.deadline import queue_takes_timeout, within_timeout
from actors.model.instance_pool import ModelInstances, load_error
from actors.model.submission import Submission
from actors.scheduling.batching.batcher import build_scheduler
from actors.scheduling.batching.held import NO_HOLD, SchedulerHold
from actors.scheduling.request_check import RequestChecker
from actors.scheduling.scheduler import Scheduler
from actors.scheduling.sequence.batcher import SequenceBatcher, sequence_batcher
from actors.tracing.stamps import QUEUE_START, REQUEST_START, TENSOR_BACKEND_OUTPUT, TENSOR_QUEUE_INPUT
from backends.interface import Backend, InstanceSpec
from protocol.core import AnswerTo, MemoryUsage, Respond
from protocol.errors import Decoupled, ServerError, Unavailable
from protocol.failures import CallbackFailures
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from protocol.tensors.device_tensor import bring_to_host
from repository.model_config import InstanceKind, ModelConfig
from repository.warmup_data import WarmupSample


class Model:
    """One version of a model. `run` loads it and serves until it is drained; the other methods are its address.

    An ensemble has a `composition`, and no instances: its `backend` is not used.
    """

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        backend: type[Backend],
        specs: Sequence[InstanceSpec],
        labels: Mapping[str, Sequence[str]] | None = None,
        *,
        has_histograms: bool = True,
        summary_quantiles: Sequence[float] = (),
        warmup: Sequence[WarmupSample] = (),
        cache: VersionCache | None = None,
        limits: ModelLimits | None = None,
        initial_states: Mapping[str, Tensor] | None = None,
        composition: Composition | None = None,
        restart_wait: float = 0.0,
        hold: SchedulerHold = NO_HOLD,
        failures: CallbackFailures | None = None,
    ) -> None:
        failures = failures or CallbackFailures()
        self.config = config
        self.version = version
        self.labels = labels if labels is not None else {}
        self.composition = composition
        self.statistics = VersionStatistics(
            histograms=latency_histograms(config) if has_histograms else None,
            summaries=LatencySummaries(summary_quantiles) if summary_quantiles else None,
        )
        self._instances = ModelInstances(
            config,
            backend,
            specs,
            warmup=warmup,
            limits=limits,
            responses=self.statistics.responses,
            failures=failures,
        )
        self._takes_device_tensors = backend.takes_device_tensors and all(
            spec.kind is InstanceKind.GPU for spec in specs
        )
        # Its instances take inputs that are still in their client's memory.
        self.takes_shared_tensors = backend.takes_shared_tensors and composition is None and cache is None
        self._cache = cache
        self.statistics.has_cache = cache is not None
        self._queue_takes_timeout = queue_takes_timeout(config)
        # To answer a request takes more than to queue it.
        self._needs_task = config.is_decoupled or cache is not None or composition is not None
        self._checker = RequestChecker(config)
        self._scheduler: Scheduler | SequenceBatcher | EnsembleRunner
        self._ensemble: EnsembleRunner | None = None
        if composition is not None:
            self._scheduler = self._ensemble = EnsembleRunner(composition, version, self.statistics)
        elif config.sequence_batching is None:
            self._scheduler = build_scheduler(
                config,
                self.statistics,
                can_run_ahead=backend.can_run_ahead,
                instances=self._instances.active_count,
                restart_wait=restart_wait,
                hold=hold,
                failures=failures,
            )
        else:
            self._scheduler = sequence_batcher(
                config,
                self.statistics,
                initial_states or {},
                restart_wait=restart_wait,
                hold=hold,
                failures=failures,
            )
        self.is_ordered = config.preserves_ordering
        # Requests of sequences take their places when the scheduler says so: one in the backlog must hold nobody up.
        self._takes_turns_late = config.sequence_batching is not None
        self._turns = TurnOrder() if config.is_decoupled and self.is_ordered else None
        self._address: SchedulerAddress | None = None
        # Of the clock that it runs by; asked for each request.
        self._now: Callable[[], float] = trio.current_time
        # Unloaded for the memory budget: the next request has its successor loaded.
        self.is_evicted = False
        # The version that this one has replaced, while sequences are open there: their requests go on to it.
        self.predecessor: Model | None = None
        # Looks a request's model up again, for requests that reach this one after it was replaced.
        self.find_successor: Callable[[InferenceRequest], Model] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether all instances that take requests are loaded and alive; of an ensemble, whether its composing models
        are ready. One that was evicted is: a request for it is answered."""
        if self.is_evicted:
            return True
        if self.composition is not None and not self.composition.is_ready:
            return False
        return self._scheduler.live_count >= self._instances.active_count and not self._instances.is_over

    @property
    def gpu(self) -> int | None:
        """The GPU that all instances are on, if there is one such."""
        return self._instances.gpu

    @property
    def takes_device_tensors(self) -> bool:
        """Whether inputs that lie on a device go to its instances as they are."""
        if self.composition is not None:
            return self.composition.graph.takes_device_tensors
        return self._takes_device_tensors

    @property
    def queue_takes_timeout(self) -> bool:
        """Whether a request's `timeout` limits its time in the queue, for an ensemble that of any composing model; else
        it is a deadline for the whole request."""
        if self.composition is not None:
            return self.composition.queue_takes_timeout
        return self._queue_takes_timeout

    def check_composition(self) -> None:
        """A model that this ensemble is composed of was replaced."""
        if self.composition is not None:
            self.composition.check_again()
            if self._cache is not None:
                self._cache.forget()

    async def check_ready(self) -> bool:
        """Whether it is ready, and every instance's model, asked anew, says so too (`backends.interface.Backend`).

        For an ensemble the composing models are asked."""
        if not self.is_ready:
            return False
        if self.composition is not None:
            return await self.composition.check_ready()
        if self.is_evicted:
            return True
        return await self._instances.check_ready()

    @property
    def pending_count(self) -> int:
        return self._scheduler.pending_count

    @property
    def spec_count(self) -> int:
        """The instances that it has when all are loaded."""
        return len(self._instances.specs)

    @property
    def has_work(self) -> bool:
        """Whether requests wait, or sequences are open, whose state would be lost with the model."""
        return self.open_sequences > 0 or self.pending_count > 0

    @property
    def open_sequences(self) -> int:
        """Those that have begun and not ended."""
        return self._scheduler.policy.open_count if isinstance(self._scheduler, SequenceBatcher) else 0

    def continues_sequence(self, request: InferenceRequest) -> bool:
        """Whether a request belongs to one of them."""
        return isinstance(self._scheduler, SequenceBatcher) and self._scheduler.policy.continues(request)

    def follow(self, replaced: Model) -> None:
        """Send requests of sequences that are open with a version that this one has replaced, or with one before that,
        on to there."""
        last = replaced
        while last.predecessor is not None:
            last = last.predecessor
        last.predecessor, self.predecessor = self.predecessor, replaced

    def _where_it_began(self, request: InferenceRequest) -> Model | None:
        """The version before this one where the request's sequence is open."""
        before = self.predecessor
        while before is not None and not before.continues_sequence(request):
            before = before.predecessor
        if self.predecessor is not None and self.predecessor._instances.is_over:
            self.predecessor = self.predecessor.predecessor
        return before

    # actors.model.call_waits.CalledModel

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def source(self) -> object:
        specs = self._instances.specs
        return specs[0].source if specs else None

    @property
    def instance_count(self) -> int:
        return self._scheduler.live_count

    @property
    def is_decoupled(self) -> bool:
        return self.config.is_decoupled

    def check(self, request: InferenceRequest) -> None:
        """Raises what is wrong with a request for this model, as far as the configuration says."""
        self._checker.check(request)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Check a request, have it run, return its answer or raise its error.

        Cancelled, it tells the scheduler, which drops the request if it still waits.
        """
        if self.predecessor is not None and (before := self._where_it_began(request)) is not None:
            return await before.infer(request)
        if self.config.is_decoupled:
            raise Decoupled(f"model '{self.config.name}' is decoupled: it answers streaming requests only")
        if request.has_device_inputs and not self.takes_device_tensors:
            await trio.to_thread.run_sync(bring_to_host, request)
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

    def _successor(self, request: InferenceRequest, refusal: StoppedAccepting) -> Model:
        """Who takes a request that this one takes no more; if there is nobody, the refusal is raised."""
        successor = None if self.find_successor is None else self.find_successor(request)
        if successor is None or successor is self:
            raise refusal
        return successor

    async def _run(self, request: InferenceRequest) -> InferenceResponse:
        if self._ensemble is not None:
            return await self._ensemble.infer(request)
        slot = ReplySlot()
        with self._submitted(request, slot):
            result = await slot.receive()
        if isinstance(result, ServerError):
            raise result.with_traceback(None)  # one error may answer many requests
        if request.trace is not None:
            request.trace.record_tensors(TENSOR_BACKEND_OUTPUT, result.outputs)
        return result

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        """As `protocol.core.InferenceCore.infer_stream`. Cancelled, it tells the scheduler; the model can see that."""
        if self.predecessor is not None and (before := self._where_it_began(request)) is not None:
            return await before.infer_stream(request, respond)
        if not self.is_decoupled:
            await respond(await self.infer(request))
            return True
        if request.has_device_inputs and not self.takes_device_tensors:
            await trio.to_thread.run_sync(bring_to_host, request)
        call = self._run_stream(request, respond)
        try:
            if request.timeout_microseconds and not self.queue_takes_timeout:
                return await within_timeout(request, call)
            return await call
        except StoppedAccepting as refusal:  # before any response
            successor = self._successor(request, refusal)
        return await successor.infer_stream(request, respond)

    async def _run_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        if self._ensemble is not None:
            return await self._ensemble.infer_stream(request, respond)
        is_final = False
        reply, answers = trio.open_memory_channel[Reply](BUFFERED_RESPONSES)
        waiting = WaitingResponses(request.response_memory)
        submission = self._submitted(request, reply, waiting=waiting)
        with waiting, submission as item, answers:
            if item.turn is not None:
                await item.turn.wait()
                for response in item.turn.held:
                    is_final = await self._hand_on(response, request, respond)
            async for result in answers:
                if isinstance(result, ServerError):  # refused before it ran; raised below, nothing is given up
                    item.failure = result
                    break
                submission.end_wait()
                is_final = await self._hand_on(result, request, respond)
                waiting.remove_first()
        if item.failure is not None:
            raise item.failure.with_traceback(None)
        return is_final

    async def _hand_on(self, response: InferenceResponse, request: InferenceRequest, respond: Respond) -> bool:
        """Returns whether it is the last one."""
        if request.trace is not None:
            request.trace.record_tensors(TENSOR_BACKEND_OUTPUT, response.outputs)
        await respond(response)
        return response.is_final

    def submit(self, request: InferenceRequest, answer_to: AnswerTo, *, later: bool = False) -> Submission | None:
        """As `protocol.core.InferenceCore.submit`."""
        if (
            self._needs_task
            or self.predecessor is not None
            or request.has_device_inputs
            or request.trace is not None
            or (request.timeout_microseconds and not self.queue_takes_timeout)
        ):
            return None
        try:
            return self._submitted(request, answer_to, later=later)
        except StoppedAccepting:  # its successor may take it
            return None

    def flush(self) -> None:
        """Have run what was submitted to be given out later."""
        if self._address is not None:
            self._address.flush()

    def _submitted(
        self,
        request: InferenceRequest,
        answer_to: AnswerTo,
        *,
        later: bool = False,
        waiting: WaitingResponses | None = None,
    ) -> Submission:
        if self._address is None:
            raise Unavailable(f"model '{self.config.name}' is not loaded")
        trace = request.trace
        if trace is not None:
            trace.identify(self.version, request.id)
            trace.stamp(REQUEST_START)
        checked = self._checker.check(request)
        item = QueuedRequest(request, checked.batch_size, checked.shape_key, self._now(), answer_to)
        if waiting is not None:
            item.waiting = waiting
        if trace is not None:
            trace.stamp(QUEUE_START)
            trace.record_tensors(TENSOR_QUEUE_INPUT, request.inputs)
        submission = Submission(self._address, item, request)
        if request.caller is not None:
            submission.begin_wait(request.caller, self)
        if self._turns is not None:
            item.turn = Turn(self._turns) if self._takes_turns_late else self._turns.join()
        try:
            if later:
                self._address.submit(item)
            else:
                self._address.send_nowait(Submit(item))
        except Exception:  # Unavailable, or a defect
            item.is_cancelled = True
            if item.turn is not None:
                item.turn.leave()
            submission.end_wait()
            raise
        return submission

    def drain(self, *, lets_sequences_end: bool = False) -> None:
        """Accept no more requests, finish those that are here, unload; `run` then returns. With `lets_sequences_end`
        open sequences go on until they end."""
        if self._address is not None:
            with suppress(Unavailable):
                self._address.send_nowait(Drain(lets_sequences_end))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Started when all instances are loaded; a failed load is raised as one ServerError, after clean-up."""
        try:
            async with trio.open_nursery() as nursery:
                self._now = trio.lowlevel.current_clock().current_time
                self._address = await nursery.start(self._schedule)
                runs_ahead = isinstance(self._scheduler, Scheduler) and self._scheduler.runs_ahead
                await self._instances.load(self._address, nursery, runs_ahead=runs_ahead)
                task_status.started()
        except BaseExceptionGroup as group:
            _, rest = group.split(Exception)
            if rest is not None:  # Cancelled, KeyboardInterrupt: not ours to sum up
                raise
            raise load_error(group, self.config.name) from group

    async def _schedule(self, *, task_status: trio.TaskStatus[SchedulerAddress]) -> None:
        try:
            await self._scheduler.run(task_status=task_status)
        finally:
            self._instances.end()

    @property
    def can_update_instances(self) -> bool:
        """Whether `update_instances` may be called: there are instances, and neither sequences nor resources are bound
        to them."""
        return isinstance(self._scheduler, Scheduler) and self._instances.can_update

    async def update_instances(self, wanted: Model) -> None:
        """Have the configuration and the instances of `wanted`, which was made from the same files and never run: as
        `ModelInstances.update`.

        Raises:
            ServerError: one could not be loaded; nothing has changed then.
        """
        await self._instances.update(wanted._instances)
        self.config = wanted.config
        assert isinstance(self._scheduler, Scheduler)
        self._scheduler.resize(self._instances.active_count)

    def memory_usage(self) -> list[MemoryUsage]:
        """What all instances hold, by type and device."""
        return [] if self.is_evicted else self._instances.memory_usage()
