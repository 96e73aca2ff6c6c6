"""Ensemble runner: takes the role of the scheduler for an ensemble, whose instances are the models of its steps.

Flow: core → model → [ensemble runner] → ensemble request → the models of the steps → … → model → core. Started and
owned by the model actor, in place of another model's scheduler. An ensemble has no queue: a request begins at once, but
for the byte budget, and runs in its caller's own task, so the caller's cancel scope is that of all its steps. The
runner tracks all requests in flight: a drain waits for them, and its end cancels them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from actors.ensemble.clock import StepClock
from actors.ensemble.composition import Composition
from actors.ensemble.limits import EnsembleLimits
from actors.ensemble.request import EnsembleRequest
from actors.mail.messages import Drain, QueuedRequest, SchedulerAddress, SchedulerMessage, stopped_accepting
from actors.metrics.statistics import FailureReason, VersionStatistics
from actors.scheduling.request_check import RequestChecker
from actors.tracing.stamps import QUEUE_START, REQUEST_END, REQUEST_START, TENSOR_BACKEND_OUTPUT, TENSOR_QUEUE_INPUT
from protocol.core import Respond
from protocol.errors import Cancelled, ServerError, Unavailable
from protocol.messages import InferenceRequest, InferenceResponse


@dataclass(eq=False, slots=True)
class EnsembleRunner:
    """Ends when drained: asked to, and no request in flight. Cancelled, it fails those in flight and cancels their
    steps."""

    composition: Composition
    version: int
    statistics: VersionStatistics
    limits: EnsembleLimits = field(init=False)
    _checker: RequestChecker = field(init=False)
    _running: set[trio.CancelScope] = field(default_factory=set, init=False)
    _accepts: bool = field(default=False, init=False)
    _serving: trio.CancelScope = field(default_factory=trio.CancelScope, init=False)

    def __post_init__(self) -> None:
        self.limits = EnsembleLimits(self.composition.config)
        self._checker = RequestChecker(self.composition.config)

    @property
    def name(self) -> str:
        return self.composition.config.name

    @property
    def pending_count(self) -> int:
        """Requests that wait for room in the byte budget."""
        return self.limits.waiting_requests

    @property
    def running_count(self) -> int:
        return len(self._running)

    @property
    def live_count(self) -> int:
        """Instances of its own: none."""
        return 0

    async def run(self, *, task_status: trio.TaskStatus[SchedulerAddress] = trio.TASK_STATUS_IGNORED) -> None:
        self._accepts = True
        try:
            task_status.started(SchedulerAddress(self._tell, self._submit, self._end_if_drained))
            with self._serving:
                await trio.sleep_forever()
        finally:
            self._accepts = False
            for request in self._running:
                request.cancel()

    def _tell(self, message: SchedulerMessage) -> None:
        assert isinstance(message, Drain)  # requests and instances tell it nothing
        self._accepts = False
        self._end_if_drained()

    def _submit(self, item: QueuedRequest) -> None:
        raise NotImplementedError  # each is run by a call of its own

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """As `actors.model.model.Model.infer`, for an ensemble that is not decoupled."""
        response = await self._serve(request, None)
        assert response is not None
        return response

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        """As `actors.model.model.Model.infer_stream`, for a decoupled one."""
        is_final = False

        async def hand_on(response: InferenceResponse) -> None:
            nonlocal is_final
            is_final = response.is_final
            if request.trace is not None:
                request.trace.record_tensors(TENSOR_BACKEND_OUTPUT, response.outputs)
            await respond(response)

        await self._serve(request, hand_on)
        return is_final

    async def _serve(self, request: InferenceRequest, respond: Respond | None) -> InferenceResponse | None:
        """One request, from its checks to its response; None if all responses were sent."""
        trace = request.trace
        if trace is None:
            return await self._run(request, respond)
        trace.identify(self.version, request.id)
        trace.stamp(REQUEST_START)
        try:
            trace.stamp(QUEUE_START)
            trace.record_tensors(TENSOR_QUEUE_INPUT, request.inputs)
            response = await self._run(request, respond)
            if response is not None:
                trace.record_tensors(TENSOR_BACKEND_OUTPUT, response.outputs)
            return response
        finally:
            trace.stamp(REQUEST_END)

    async def _run(self, request: InferenceRequest, respond: Respond | None) -> InferenceResponse | None:
        batch_size = self._checker.check(request).batch_size
        if not self._accepts:
            raise stopped_accepting()
        if self.composition.failure is not None:
            self.statistics.count_failure(FailureReason.OTHER, 0.0)
            raise self.composition.failure.with_traceback(None)
        arrival = trio.current_time()
        running = EnsembleRequest(self.composition, self.limits, self.version, request, respond)
        scope = trio.CancelScope()
        self._running.add(scope)
        failure: FailureReason | None = FailureReason.CANCELED  # the caller has gone, if nothing else is known
        try:
            with scope:
                response = await running.run()
                failure = None
                return response
            failure = FailureReason.OTHER
            raise Unavailable(f"model '{self.name}' was stopped before the request was finished")
        except ServerError as error:
            failure = FailureReason.CANCELED if isinstance(error, Cancelled) else FailureReason.OTHER
            raise
        finally:
            self._running.discard(scope)
            try:
                if failure is None:
                    self._count_success(running, batch_size, arrival)
                else:
                    self.statistics.count_failure(failure, trio.current_time() - arrival)
            finally:
                self._end_if_drained()

    def _end_if_drained(self) -> None:
        if not self._accepts and not self._running:
            self._serving.cancel()

    def _count_success(self, ran: EnsembleRequest, batch_size: int, arrival: float) -> None:
        now = trio.current_time()
        spent = ran.spent
        self.statistics.count_ensemble(
            spent.timing,
            batch_size=batch_size,
            queue_ns=spent.queue_ns,
            seconds=now - arrival,
            first_response_seconds=None if ran.first_response is None else ran.first_response - arrival,
        )
        if isinstance(ran.request.trace, StepClock):  # a step of another ensemble
            ran.request.trace.spent.add(spent)
