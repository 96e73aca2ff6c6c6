"""Generations of one engine: from the admission of a request to its last response.

Flow: backend → [generations: admission → engine worker → answers] → responders. Owned by the backend, and called on the
server's loop: by the backend for requests and cancellations, by the worker's link for each step. Nothing here waits but
`_send_rest`, which sends to one slow client in a task of its own, joined to one response whatever comes meanwhile.

A defect in the handling of one generation ends that one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import chain

import trio

from backends.engines.admission import Admission, AdmissionLimits, Need, QueueFull
from backends.engines.answer import Answer
from backends.engines.metrics.engine import ANSWERED, EngineMetrics, Timing
from backends.engines.step_slices import StepSlices
from backends.engines.tensors.images import NO_IMAGES, Images
from backends.engines.worker.trioton_engine.engine import Event, Generation, Sampling, Stats
from backends.engines.worker_link import EngineWorker
from backends.interface import NotBegun, Responder
from backends.python.wire.channel import WorkerGone
from protocol.core import QueueRoom
from protocol.errors import Cancelled, Internal, InvalidArgument, ServerError
from protocol.failures import CallbackFailures
from protocol.gen_ai import Generated
from protocol.log.tags import Tags, found_by, tags_by
from protocol.messages import InferenceRequest
from protocol.quotas.fair_queue import NOBODY
from protocol.quotas.quota import Unit


class Running:
    """One generation. `is_answered` says that its responder is closed, or its last response is being sent; the engine
    may have it still."""

    __slots__ = (
        *("answer", "charged", "generation", "has_begun", "images", "is_answered", "is_sending", "request"),
        *("responder", "timing"),
    )

    def __init__(
        self,
        request: InferenceRequest,
        responder: Responder,
        answer: Answer,
        generation: Generation,
        timing: Timing,
        images: Images = NO_IMAGES,
    ) -> None:
        self.request = request
        self.responder = responder
        self.answer = answer
        self.generation = generation
        self.timing = timing
        self.images = images  # counted as long as they are here
        self.charged = 0  # tokens, before it has begun
        self.has_begun = False
        self.is_answered = False
        self.is_sending = False  # a task does


class Generations:
    """`clock` gives the time in seconds."""

    def __init__(
        self,
        model: str,
        limits: AdmissionLimits,
        failures: CallbackFailures,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._failures = failures
        self._clock = clock
        self._metrics: EngineMetrics  # from `attach` on
        self._admission: Admission[Running] = Admission(limits, model)
        self._worker: EngineWorker | None = None
        self._slices: StepSlices | None = None
        self._by_sequence: dict[int, Running] = {}
        self._by_request: dict[InferenceRequest, Running] = {}  # those that are not answered
        self._unsent: list[Running] = []  # admitted, when the worker had ended
        self._last = 0
        self._sending = 0  # tasks
        self._stepped = 0.0  # when the engine has ended a step, or was given something to do
        self._awaiting: set[trio.Event] = set()  # of those who wait for a change

    @property
    def in_flight(self) -> int:
        """How many the engine has."""
        return self._admission.in_flight

    @property
    def waiting(self) -> int:
        """How many wait for the engine."""
        return self._admission.waiting

    @property
    def queue_room(self) -> QueueRoom | None:
        """What waits for the engine, and how much may; None where there are no bounds."""
        return self._admission.queue_room

    def attach(self, worker: EngineWorker, metrics: EngineMetrics) -> None:
        """The worker that generates, before anything else; what it does is counted in `metrics`."""
        self._worker = worker
        worker.link.tags_of, worker.link.tags_now = self._tags_of, self._tags_now
        self._slices = StepSlices(self._take_event, self._step_ended, worker.link.spawn)
        self._metrics = metrics
        self._admission.note(worker.stats)
        metrics.begin(worker.stats, self._admission.waiting)

    def _tags_of(self, sequence: int) -> Tags:
        """What log lines say of the request of a generation that the engine has."""
        running = self._by_sequence.get(sequence)
        return {} if running is None else tags_by(*found_by(running.request))

    def _tags_now(self) -> Tags:
        """Those of the only one."""
        return self._tags_of(next(iter(self._by_sequence))) if len(self._by_sequence) == 1 else {}

    def now(self) -> float:
        """By which a request's arrival is to be told."""
        return self._clock()

    def add(
        self,
        request: InferenceRequest,
        responder: Responder,
        answer: Answer,
        token_ids: Sequence[int],
        sampling: Sampling,
        *,
        arrival: float,
        adapter: str = "",
        priority: int = 0,
        text: str = "",
        images: Images = NO_IMAGES,
    ) -> None:
        """Queue a generation whose request came at `arrival`, and submit it if it is its turn.

        Raises:
            QueueFull: too many wait.
            QuotaExceeded: its client's key may not use so many tokens now.
        """
        self._last += 1
        generation = Generation(self._last, token_ids, sampling, adapter, priority, text, images.images)
        running = Running(request, responder, answer, generation, Timing(arrival), images)
        need = Need(len(token_ids), len(token_ids) + sampling.max_tokens, priority)
        if request.charge is not None:
            request.charge.take_more(Unit.TOKENS, need.most_tokens)
            request.charge.is_counted = True
            running.charged = need.most_tokens
        try:
            self._admission.add(running, need, NOBODY if request.charge is None else request.charge.account)
        except QueueFull as refusal:
            self._metrics.reject(refusal.limit)
            if request.charge is not None:
                request.charge.settle(Unit.TOKENS, 0, running.charged)
            raise
        if adapter:
            running.timing.adapter = self._metrics.adapters.queue(adapter)
        self._by_request[request] = running
        self._submit()
        if self._admission.waiting:
            self._note()

    def _submit(self) -> None:
        if self._worker is None:
            return
        while (running := self._admission.next()) is not None:
            generation, running.timing.submitted = running.generation, self._clock()
            if not self._by_sequence:
                self._stepped = running.timing.submitted
            self._by_sequence[generation.sequence] = running
            if generation.adapter:
                self._metrics.adapters.submit(generation.adapter)
            try:
                self._worker.submit(generation)
            except WorkerGone:  # its end is told in a moment
                del self._by_sequence[generation.sequence]
                self._unsent.append(running)
                return

    def cancel(self, request: InferenceRequest) -> None:
        """The caller of a request has gone."""
        running = self._by_request.get(request)
        if running is None:
            return
        error = Cancelled(f"[request id: {request.id}] request to model '{self._model}' was cancelled")
        self._cancel(running, error)

    def _cancel(self, running: Running, error: Cancelled) -> None:
        waited = self._admission.withdraw(running)
        self._close(running, error)
        if waited:
            self._withdraw(running)
            self._submit()  # it may have stood in the way
            self._note()
            self.tell_changed()
        else:
            self._abort(running)

    def _withdraw(self, running: Running) -> None:
        """It waits no more."""
        if running.generation.adapter:
            self._metrics.adapters.withdraw(running.generation.adapter)

    def cancel_named(self, request_id: str) -> None:
        """End those of this id, by the wish of their client."""
        for request, running in list(self._by_request.items()):
            if request.id == request_id:
                self._cancel(running, Cancelled("Request cancelled by client"))

    def _abort(self, running: Running) -> None:
        if self._worker is not None and running.generation.sequence in self._by_sequence:
            self._worker.abort((running.generation.sequence,))

    def step(self, events: Sequence[Event], stats: Stats) -> None:
        """What a step of the engine has brought."""
        assert self._slices is not None
        self._stepped = now = self._clock()
        self._slices.put(events, stats, now)

    def step_owed_for(self) -> float:
        """For how many seconds the engine has been at its present step; 0 while it has no generation."""
        return self._clock() - self._stepped if self._by_sequence else 0.0

    def _take_event(self, event: Event, now: float) -> None:
        running = self._by_sequence.get(event.sequence)
        if running is None:
            return
        try:
            self._take(running, event, now)
        except Exception as error:
            self._fail(running, error)

    def _step_ended(self, stats: Stats, now: float) -> None:
        try:
            self._metrics.step(now)
            self._admission.note(stats)
            if self._admission.waiting:
                self._submit()
            self._note()
        except Exception as error:
            self._failures.note("backend", error, f"model '{self._model}': the end of a step could not be handled")
        self.tell_changed()

    def uses(self, adapter: str) -> bool:
        """Whether a generation that has not ended uses an adapter."""
        all_of_them = chain(self._by_sequence.values(), self._by_request.values())
        return any(running.generation.adapter == adapter for running in all_of_them)

    async def wait_unused(self, adapter: str) -> None:
        """Until no generation uses an adapter, or the worker has ended."""
        while self._worker is not None and self.uses(adapter):
            await self.wait_changed()

    @property
    def is_idle(self) -> bool:
        """Whether there is no generation, and all that was generated is sent."""
        return not (self._by_sequence or self._by_request or self._sending)

    async def wait_changed(self) -> None:
        """Until a generation has ended, perhaps."""
        changed = trio.Event()
        self._awaiting.add(changed)
        try:
            await changed.wait()
        finally:
            self._awaiting.discard(changed)

    def detach(self) -> None:
        """The worker is gone, and nobody is to be answered any more."""
        if self._slices is not None:
            self._slices.clear()
        if self._worker is not None:
            self._worker = None
            self._metrics.end()
        self.tell_changed()

    def tell_changed(self) -> None:
        """Wake who waits for a change."""
        for changed in self._awaiting:
            changed.set()

    def _take(self, running: Running, event: Event, now: float) -> None:
        if event.token_ids:
            timing = running.timing
            if not timing.first:
                prompt = len(running.generation.token_ids)
                self._metrics.first(timing, prompt, event.cached_tokens, event.queued_seconds, now)
                if running.request.gen_ai is not None:
                    running.request.gen_ai.first_token()
            self._metrics.tokens(timing, len(event.token_ids), now)
            if running.request.charge is not None:
                self._admission.generated(running.request.charge.account, len(event.token_ids))
        if event.finish:
            if event.prompt_tokens:
                self._metrics.saw(running.timing, event.prompt_tokens - len(running.generation.token_ids))
            del self._by_sequence[event.sequence]
            self._finish(running)
        elif not running.has_begun:
            running.has_begun = True
            self._admission.begin(running)
        if not running.is_answered:
            self._push(running, event, now)

    def _finish(self, running: Running) -> None:
        """The engine holds nothing of it any more."""
        self._admission.finish(running)
        if running.generation.adapter:
            self._metrics.adapters.finish(running.generation.adapter)

    def _note(self) -> None:
        if self._worker is not None:
            self._metrics.note(self._worker.stats, self._admission.waiting)

    def _push(self, running: Running, event: Event, now: float) -> None:
        answer = running.answer
        had_ended = bool(answer.finish)
        if event.finish == "error":
            text = f"model '{self._model}': {event.error or 'the engine has ended the generation'}"
            self._close(running, InvalidArgument(text) if event.is_refused else Internal(text))
            return
        answer.push(event)
        if answer.finish and not had_ended:
            self._count(running, answer.finish, now)
        if not running.is_sending and answer.has_news:
            self._send(running)
        if answer.was_cut:
            self._abort(running)

    def _send(self, running: Running) -> None:
        answer = running.answer
        response = answer.take()
        if answer.finish:
            self._answered(running)
        if not running.responder.send_nowait(response):
            running.is_sending = True
            self._sending += 1
            assert self._worker is not None
            self._worker.link.spawn(self._send_rest, running, response)

    async def _send_rest(self, running: Running, response: object) -> None:
        """Send to a slow client until it has all that there is. Cancelled with the instance."""
        answer, responder = running.answer, running.responder
        try:
            await responder.send(response)  # type: ignore[arg-type]
            while answer.has_news and not running.is_answered:
                response = answer.take()
                if answer.finish:
                    self._answered(running)
                await responder.send(response)
        except Exception as error:
            self._fail(running, error)
        finally:
            running.is_sending = False
            self._sending -= 1
            self.tell_changed()

    def _fail(self, running: Running, error: Exception) -> None:
        self._failures.note("backend", error, f"model '{self._model}': a generation failed")
        self._close(running, Internal(f"model '{self._model}' failed unexpectedly; the server's log has the details"))
        self._abort(running)

    def _count(self, running: Running, reason: str, now: float) -> None:
        prompt, most = running.answer.prompt_tokens, running.generation.sampling.max_tokens
        self._metrics.finish(running.timing, reason, now, prompt_tokens=prompt, most_tokens=most)
        if running.request.charge is not None:
            spent = prompt + running.timing.tokens if running.timing.submitted else 0
            running.request.charge.settle(Unit.TOKENS, spent, running.charged)
        if running.request.gen_ai is not None and reason in ANSWERED:
            running.request.gen_ai.succeed(Generated(prompt, running.timing.tokens, (reason,)))

    def _close(self, running: Running, error: ServerError) -> None:
        if not running.answer.finish:
            self._count(running, "abort" if isinstance(error, Cancelled) else "error", self._clock())
        self._answered(running)
        running.responder.close(error)

    def _answered(self, running: Running) -> None:
        running.is_answered = True
        self._by_request.pop(running.request, None)

    def end(self, error: ServerError) -> None:
        """The worker has ended: what it had fails, and what waits goes back to the scheduler."""
        if self._slices is not None:
            self._slices.clear()
        self._worker = None
        waiting = self._admission.clear()
        for running in list(self._by_sequence.values()):
            self._finish(running)
            if not running.is_answered:
                self._close(running, error)
        self._by_sequence.clear()
        for running in waiting:
            self._withdraw(running)
        for running in self._unsent:
            self._finish(running)
        for running in (*self._unsent, *waiting):
            if not running.is_answered:
                self._answered(running)
                if running.request.charge is not None:  # it is charged again when it comes again
                    running.request.charge.settle(Unit.TOKENS, 0, running.charged)
                running.responder.close(NotBegun())
        self._unsent.clear()
        self._metrics.end()
        self.tell_changed()
