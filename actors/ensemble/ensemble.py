"""Ensemble: a servable that runs each request as a graph of steps, which are requests to other models.

Flow: core → [ensemble] → ensemble request → the models of the steps → … → core.
Started and owned by the model manager, as any model. An ensemble has no scheduler and no queue: a request begins at
once, but for the byte budget, in a task of the ensemble's nursery, whose cancel scope is that of all its steps; a
stream of responses runs in its caller's task. The ensemble tracks all requests in flight: a drain waits for them, and
its end cancels them.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from actors.cache.response_cache import VersionCache
from actors.ensemble.clock import StepClock
from actors.ensemble.composition import Composition
from actors.ensemble.limits import EnsembleLimits
from actors.ensemble.request import EnsembleRequest
from actors.mail.messages import stopped_accepting
from actors.metrics.latencies import HistogramDetail
from actors.metrics.statistics import FailureReason
from actors.model.submission import Submission
from actors.model.version import RunningVersion
from actors.tracing.stamps import QUEUE_START, REQUEST_END, REQUEST_START, TENSOR_BACKEND_OUTPUT, TENSOR_QUEUE_INPUT
from protocol.core import ReplyChannel, Respond
from protocol.errors import Cancelled, ServerError, Unavailable
from protocol.failures import CallbackFailures
from protocol.log.access_record import COMPUTE_NS, QUEUE_NS
from protocol.messages import InferenceRequest, InferenceResponse
from protocol.text.model import TextModel


class Ensemble(RunningVersion):
    """Implements `actors.model.servable.Servable`. `run` ends when drained: asked to, and no request in
    flight. Cancelled, it fails those in flight and cancels their steps."""

    def __init__(
        self,
        composition: Composition,
        version: int,
        *,
        histograms: HistogramDetail = HistogramDetail.FEW,
        summary_quantiles: Sequence[float] = (),
        cache: VersionCache | None = None,
        failures: CallbackFailures | None = None,
        text: TextModel | None = None,
    ) -> None:
        super().__init__(
            composition.config,
            version,
            composition.labels,
            histograms=histograms,
            summary_quantiles=summary_quantiles,
            cache=cache,
            failures=failures,
            text=text,
        )
        self.composition = composition
        self.limits = EnsembleLimits(composition.config)
        self._running: set[trio.CancelScope] = set()
        self._accepts = False
        self._serving = trio.CancelScope()

    @property
    def is_ready(self) -> bool:
        """Whether its composing models are."""
        return self.is_evicted or (self.composition.is_ready and not self.is_over)

    async def check_ready(self) -> bool:
        return self.is_ready and await self.composition.check_ready()

    @property
    def takes_device_tensors(self) -> bool:
        return self.composition.graph.takes_device_tensors

    @property
    def queue_takes_timeout(self) -> bool:
        """That of any composing model."""
        return self.composition.queue_takes_timeout

    @property
    def pending_count(self) -> int:
        """Requests that wait for room in the byte budget."""
        return self.limits.waiting_requests

    @property
    def running_count(self) -> int:
        return len(self._running)

    def check_composing(self) -> ServerError | None:
        self.composition.check_again()
        if self._cache is not None:
            self._cache.forget()
        return self.composition.failure

    def version_label(self, *, is_only: bool) -> int:
        """As Triton has it for ensembles."""
        return 1 if is_only else self.version

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as requests:
            self._deferred.open(requests)
            self._accepts = True
            try:
                task_status.started()
                with self._serving:
                    await trio.sleep_forever()
            finally:
                self._accepts, self._is_over = False, True
                self._deferred.close()
                for request in self._running:
                    request.cancel()

    def drain(self, *, lets_sequences_end: bool = False) -> None:
        self._accepts = False
        self._end_if_drained()

    def submit(self, request: InferenceRequest, reply_to: ReplyChannel, later: bool = False) -> Submission:
        if self.predecessor is not None and (before := self._where_it_began(request)) is not None:
            return before.submit(request, reply_to)
        if self.is_decoupled:
            return self._refuse_decoupled(request, reply_to)
        return self._defer(request, reply_to)

    def flush(self) -> None:
        """Nothing waits for it."""

    async def _run(self, request: InferenceRequest) -> InferenceResponse:
        response = await self._serve(request, None)
        assert response is not None
        return response

    async def _run_stream(self, request: InferenceRequest, respond: Respond) -> bool:
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
            return await self._execute(request, respond)
        trace.identify(self.version, request.id)
        trace.stamp(REQUEST_START)
        try:
            trace.stamp(QUEUE_START)
            trace.record_tensors(TENSOR_QUEUE_INPUT, request.inputs)
            response = await self._execute(request, respond)
            if response is not None:
                trace.record_tensors(TENSOR_BACKEND_OUTPUT, response.outputs)
            return response
        finally:
            trace.stamp(REQUEST_END)

    async def _execute(self, request: InferenceRequest, respond: Respond | None) -> InferenceResponse | None:
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
        elif ran.request.trace is not None:
            compute_ns = spent.compute_input_ns + spent.compute_infer_ns + spent.compute_output_ns
            ran.request.trace.annotate({QUEUE_NS: spent.queue_ns, COMPUTE_NS: compute_ns})
