"""Model: one loaded version with instances, their scheduler, and its statistics.

Flow: core → [model] → scheduler → model instance.
Started and owned by the model manager; owns the scheduler, the instances by way of `model/instance_pool.py`, and in its
nursery the requests that have to wait for more than the scheduler (`model/deferred.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import trio

from actors.cache.response_cache import VersionCache
from actors.instance.rate_limiter import ModelLimits
from actors.instance.response_stream import BUFFERED_RESPONSES
from actors.mail.messages import Drain, QueuedRequest, SchedulerAddress, StoppedAccepting, Submit
from actors.mail.reply_slot import Reply
from actors.mail.turns import Turn, TurnOrder
from actors.mail.waiting_responses import WaitingResponses
from actors.metrics.latencies import HistogramDetail
from actors.model.adapters import ModelAdapters
from actors.model.deadline import queue_takes_timeout
from actors.model.instance_pool import ModelInstances, load_error
from actors.model.servable import Servable
from actors.model.sleep import put_to_sleep, wake
from actors.model.submission import QueuedSubmission, Submission, TracedReply, refused, submit_and_wait
from actors.model.supervisor import InstanceStatus
from actors.model.version import RunningVersion
from actors.scheduling.batching.batcher import build_scheduler
from actors.scheduling.batching.held import NO_HOLD, SchedulerHold
from actors.scheduling.scheduler import Scheduler
from actors.scheduling.sequence.batcher import SequenceBatcher, sequence_batcher
from actors.tracing.stamps import QUEUE_START, REQUEST_START, TENSOR_BACKEND_OUTPUT, TENSOR_QUEUE_INPUT
from backends.interface import Backend, InstanceSpec, ModelSource
from protocol.core import MemoryUsage, QueueRoom, ReplyChannel, Respond, RespondsAtOnce
from protocol.errors import ServerError, Unavailable
from protocol.failures import CallbackFailures
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from protocol.text.model import TextModel
from repository.adapter_folder import adapter_folder
from repository.model_config import InstanceKind, ModelConfig
from repository.warmup_data import WarmupSample


class Model(RunningVersion):
    """A model with instances. Implements `actors.model.servable.Servable`."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        backend: type[Backend],
        specs: Sequence[InstanceSpec],
        labels: Mapping[str, Sequence[str]] | None = None,
        *,
        histograms: HistogramDetail = HistogramDetail.FEW,
        summary_quantiles: Sequence[float] = (),
        warmup: Sequence[WarmupSample] = (),
        cache: VersionCache | None = None,
        limits: ModelLimits | None = None,
        initial_states: Mapping[str, Tensor] | None = None,
        restart_wait: float = 0.0,
        hold: SchedulerHold = NO_HOLD,
        failures: CallbackFailures | None = None,
        text: TextModel | None = None,
    ) -> None:
        super().__init__(
            config,
            version,
            labels if labels is not None else {},
            histograms=histograms,
            summary_quantiles=summary_quantiles,
            cache=cache,
            failures=failures,
            text=text,
        )
        failures = self._failures
        self._adapters = ModelAdapters(
            config.name, {} if text is None else text.adapters, lambda: self._instances.backends()
        )
        self._instances = ModelInstances(
            config,
            backend,
            specs,
            warmup=warmup,
            limits=limits,
            responses=self.statistics.responses,
            failures=failures,
            adapters=self._adapters.added,
        )
        self._takes_device_tensors = backend.takes_device_tensors and all(
            spec.kind is InstanceKind.GPU for spec in specs
        )
        self.takes_shared_tensors = backend.takes_shared_tensors and cache is None
        self._queue_takes_timeout = queue_takes_timeout(config)
        self._scheduler: Scheduler | SequenceBatcher
        if config.sequence_batching is None:
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

    @property
    def is_ready(self) -> bool:
        """Whether all instances that take requests are loaded and alive."""
        if self.is_evicted:
            return True
        return (
            self._scheduler.live_count >= self._instances.active_count
            and not self._instances.is_over
            and not self.sleep_level
        )

    def known_readiness(self) -> bool | None:
        if not self.is_ready:
            return False
        return True if self.is_evicted else self._instances.known_readiness()

    async def check_ready(self) -> bool:
        """Whether it is ready, also asking every instance's model (`backends.interface.Backend`)."""
        return self.is_ready and (self.is_evicted or await self._instances.check_ready())

    @property
    def is_over(self) -> bool:
        return self._instances.is_over

    @property
    def gpu(self) -> int | None:
        return self._instances.gpu

    @property
    def takes_device_tensors(self) -> bool:
        return self._takes_device_tensors

    @property
    def queue_takes_timeout(self) -> bool:
        return self._queue_takes_timeout

    @property
    def pending_count(self) -> int:
        return self._scheduler.pending_count

    @property
    def open_sequences(self) -> int:
        return self._scheduler.policy.open_count if isinstance(self._scheduler, SequenceBatcher) else 0

    def continues_sequence(self, request: InferenceRequest) -> bool:
        return isinstance(self._scheduler, SequenceBatcher) and self._scheduler.policy.continues(request)

    @property
    def spec_count(self) -> int:
        return len(self._instances.specs)

    def instances(self) -> Sequence[InstanceStatus]:
        return self._instances.statuses()

    @property
    def source(self) -> object:
        specs = self._instances.specs
        return specs[0].source if specs else None

    @property
    def instance_count(self) -> int:
        """How many instances are alive. Implements `actors.model.call_waits.CalledModel`, with `name` and `source`."""
        return self._scheduler.live_count

    def submit(self, request: InferenceRequest, reply_to: ReplyChannel, later: bool = False) -> Submission:
        if self.predecessor is not None and (before := self._where_it_began(request)) is not None:
            return before.submit(request, reply_to)
        if self.is_decoupled:
            return self._refuse_decoupled(request, reply_to)
        if (
            self._cache is not None
            or (request.has_device_inputs and not self._takes_device_tensors)
            or (request.timeout_microseconds and not self._queue_takes_timeout)
            # One of a sequence is not overtaken by the next.
            or (self._takes_texts and not request.sequence_id and self._checker.has_long_texts(request))
        ):
            return self._defer(request, reply_to)
        try:
            return self._queue(request, reply_to, later)
        except StoppedAccepting as refusal:
            return self._pass_on(request, reply_to, refusal)
        except ServerError as error:
            return refused(request, reply_to, error.with_traceback(None))

    def flush(self) -> None:
        if self._address is not None:
            self._address.flush()

    async def _run(self, request: InferenceRequest) -> InferenceResponse:
        return await submit_and_wait(self._queue, request)

    async def _run_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        is_final = False
        reply, answers = trio.open_memory_channel[Reply](BUFFERED_RESPONSES)
        waiting = WaitingResponses(request.response_memory)
        submission = self._queue(request, reply, waiting=waiting)
        with waiting, submission as item, answers:
            if isinstance(respond, RespondsAtOnce) and item.turn is None and request.trace is None:
                item.respond_at_once = respond.respond_at_once
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
        """Pass a response on; returns whether it is the last one."""
        if request.trace is not None:
            request.trace.record_tensors(TENSOR_BACKEND_OUTPUT, response.outputs)
        await respond(response)
        return response.is_final

    def _queue(
        self,
        request: InferenceRequest,
        reply_to: ReplyChannel,
        later: bool = False,
        waiting: WaitingResponses | None = None,
    ) -> QueuedSubmission:
        """Check a request and give it to the scheduler; with `waiting` for a stream of responses.

        Raises:
            ServerError: it was not taken.
        """
        if self._address is None:
            raise self._not_loaded()
        trace = request.trace
        if trace is not None:
            trace.identify(self.version, request.id)
            trace.stamp(REQUEST_START)
        checked = self._checker.check(request)
        item = QueuedRequest(request, checked.batch_size, checked.shape_key, self._now(), reply_to)
        if waiting is not None:
            item.waiting = waiting
        if trace is not None:
            trace.stamp(QUEUE_START)
            trace.record_tensors(TENSOR_QUEUE_INPUT, request.inputs)
            if waiting is None:
                item.reply = TracedReply(reply_to, trace)
        submission = QueuedSubmission(request, item.arrival, _address=self._address, item=item)
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
        if self._address is not None:
            with suppress(Unavailable):
                self._address.send_nowait(Drain(lets_sequences_end))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Started when all instances are loaded."""
        try:
            async with trio.open_nursery() as nursery:
                self._now = trio.lowlevel.current_clock().current_time
                self._deferred.open(nursery)
                self._address = await nursery.start(self._schedule)
                runs_ahead = isinstance(self._scheduler, Scheduler) and self._scheduler.runs_ahead
                await self._instances.load(self._address, nursery, runs_ahead=runs_ahead)
                self._note_adapters()
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
            self._deferred.close()
            self._instances.end()

    @property
    def can_update_instances(self) -> bool:
        return isinstance(self._scheduler, Scheduler) and self._instances.can_update

    async def update_instances(self, wanted: Servable) -> None:
        """As `ModelInstances.update`."""
        assert isinstance(wanted, Model)
        await self._instances.update(wanted._instances)
        self.config = wanted.config
        assert isinstance(self._scheduler, Scheduler)
        self._scheduler.resize(self._instances.active_count)

    # Adapters

    async def add_adapter(self, name: str, path: str, folders: Sequence[Path], *, replace: bool) -> None:
        self._refuse_if_evicted()
        source = self.source
        if not isinstance(source, ModelSource):
            raise self._not_loaded()
        self._adapters.check_new(name, replace=replace)
        folder = await trio.to_thread.run_sync(
            adapter_folder, path, source.version_directory, source.model_directory, folders
        )
        await self._adapters.add(name, path, str(folder), replace=replace)
        self._note_adapters()

    async def remove_adapter(self, name: str) -> None:
        self._refuse_if_evicted()
        await self._adapters.remove(name)
        self._note_adapters()

    def continue_from(self, evicted: Servable) -> None:
        super().continue_from(evicted)
        if isinstance(evicted, Model):
            self._adapters.continue_from(evicted._adapters)

    # Sleep

    @property
    def can_sleep(self) -> bool:
        backends = self._instances.backends()
        return bool(backends) and not self.is_evicted and all(backend.can_sleep for backend in backends)

    @property
    def sleep_level(self) -> int:
        return max((backend.sleep_level for backend in self._instances.backends()), default=0)

    async def sleep(self, level: int) -> None:
        self._refuse_if_evicted()
        await put_to_sleep(self._instances.backends(), level)

    async def wake(self) -> None:
        self._refuse_if_evicted()
        await wake(self._instances.backends())

    async def reset_prefix_cache(self) -> None:
        self._refuse_if_evicted()
        for backend in self._instances.backends():
            await backend.reset_prefix_cache()

    def _refuse_if_evicted(self) -> None:
        if self.is_evicted:
            raise Unavailable(
                f"model '{self.name}' was unloaded for the memory budget; its next request loads it again"
            )

    def _note_adapters(self) -> None:
        """Tell edges which ones there are now."""
        backends = self._instances.backends()
        if self._text is not None and backends and all(backend.takes_adapters for backend in backends):
            self._text = msgspec.structs.replace(self._text, adapters=dict(self._adapters.paths), takes_adapters=True)

    def memory_usage(self) -> list[MemoryUsage]:
        return [] if self.is_evicted else self._instances.memory_usage()

    def instance_states(self) -> Mapping[str, int]:
        return {} if self.is_evicted else self._instances.states()

    @property
    def restarts(self) -> int:
        return self._instances.restarts

    def arena_bytes(self) -> int:
        return 0 if self.is_evicted else self._instances.arena_bytes()

    def queue_room(self) -> QueueRoom | None:
        return None if self.is_evicted else self._instances.queue_room() or self._batcher_room()

    def _batcher_room(self) -> QueueRoom | None:
        """With priority levels each has a bound of its own, so that there is none for all."""
        batching = self.config.dynamic_batching
        policy = None if batching is None or batching.priority_levels else batching.default_queue_policy
        if policy is None or not policy.max_queue_size:
            return None
        return QueueRoom(policy.max_queue_size, self._scheduler.pending_count)
