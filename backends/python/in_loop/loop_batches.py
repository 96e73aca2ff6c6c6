"""Runs the batches of an `in_loop` model: one call of `execute` each, without thread, socket or frames.

Flow: backend → [loop batches] → the instance's `execute` → back the same way. What response senders of other threads
say comes by the link, as for any worker.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence

from backends.interface import STARTED, BatchResult, BatchTiming, InstanceSpec, Rescheduled, Started
from backends.python.batches.batches import Batches
from backends.python.batches.codec import Outcome, about_requests, error_of
from backends.python.batches.open_batch import OpenBatch
from backends.python.bls.questions import Questions
from backends.python.in_loop.in_loop import InLoopWorker
from backends.python.in_loop.loop_tensors import LargeOutput, inputs_of, settle
from backends.python.wire.channel import WorkerGone
from backends.python.wire.frames import BrokenFrame
from backends.python.wire.heads import FailedHead
from backends.python.wire.schemas import DATATYPES, TensorKey
from backends.python.worker.trioton_worker.batch import answered_otherwise, describe_request
from backends.python.worker.trioton_worker.connection import encode_json
from backends.python.worker.trioton_worker.errors import crossing
from backends.python.worker.trioton_worker.frames import LATER, MOST_SCHEMAS
from backends.python.worker.trioton_worker.instance import fail
from backends.python.worker.trioton_worker.records import RequestHeader, RequestRecord, received_records
from backends.python.worker.trioton_worker.responses import InferenceResponse as ModelResponse
from backends.python.worker.trioton_worker.schemas import Schema
from backends.python.worker.trioton_worker.session import LiveBatch
from backends.python.worker.trioton_worker.tensors import Tensor as ModelTensor
from backends.python.workers.link import WorkerLink
from protocol.errors import Internal
from protocol.log.tags import Tags, tags_of_batch
from protocol.messages import InferenceRequest, InferenceResponse, Tensor

logger = logging.getLogger("trioton.backends.python")

# The server does nothing else for so long: it is time to say so, once for each instance.
SLOW_SECONDS = 0.1


class LoopBatches(Batches):
    """Inputs are copied once, into memory of the model's own, and outputs too, but for large arrays that nobody else
    has.

    The worker's limit of bytes does not hold here: there is no second copy of anything that it would bound.
    """

    def __init__(
        self, link: WorkerLink, spec: InstanceSpec, outputs: frozenset[str], worker: InLoopWorker, questions: Questions
    ) -> None:
        super().__init__(link, spec, outputs, concurrency=1, byte_limit=0)
        self._worker = worker
        self._hand_over = worker.hand_over
        self._known_schemas: dict[tuple[object, ...], Schema] = {}
        self._running: Sequence[InferenceRequest] = ()  # those that are computed in this moment
        self._gone: list[InferenceRequest] = []  # whose callers went before their batch began
        self._is_slow = False
        self._plain = RequestHeader(outputs)  # that of a request which says nothing besides its inputs
        link.tags_of = self._tags_of
        worker.hand_over.begin(link, questions)

    def _tags_of(self, number: int) -> Tags:
        return self.open.tags_of(number) or tags_of_batch(self._running)

    def begin(
        self,
        requests: Sequence[InferenceRequest],
        done: Callable[[BatchResult | Exception], None],
        free: Callable[[], None] | None = None,
    ) -> BatchResult | Started | None:
        """Compute one batch; STARTED if response senders owe an answer. Raises Internal where the model has failed."""
        found = self._compute(requests)
        if isinstance(found, OpenBatch):
            self._keep(found, free, done)
            return STARTED
        if isinstance(found, Internal):
            raise found
        return found

    async def run(self, requests: Sequence[InferenceRequest], free: Callable[[], None] | None = None) -> BatchResult:
        found = self._compute(requests)
        if isinstance(found, OpenBatch):
            self._keep(found, free)
            return await self._end_of(found)
        if found is None:
            raise WorkerGone(self._link.channel.problem)
        if isinstance(found, Exception):
            raise found
        return found

    def _compute(self, requests: Sequence[InferenceRequest]) -> BatchResult | Internal | OpenBatch | None:
        """One batch, whole, or but for what is to come later; None where the model has ended, and nothing was done."""
        session = self._worker.session
        if session is None or session.instance is None or session.end_text:
            return None
        started = time.perf_counter_ns()
        live = LiveBatch(session, next(self._numbers))
        session.logs_verbose = self._link.logs(logging.DEBUG)
        if self._gone:
            self._note_gone(live, requests)
        try:
            received = self._received(requests, live)
            begun = time.perf_counter_ns()
            self._running = requests
            responses = session.instance.compute_in_loop(received)
            computed = time.perf_counter_ns()
            self._running = ()
            answers, large = self._outcomes(requests, received, responses)
            if large:
                del received, responses  # so that it shows who else has the arrays
                settle(large)
        except BaseException as error:  # as in any worker: also sys.exit()
            return self._failed(live, requests, error)
        if computed - begun > SLOW_SECONDS * 1e9:
            self._warn(computed - begun)
        timing = BatchTiming(begun - started, computed - begun, time.perf_counter_ns() - computed)
        if None in answers or self._hand_over.responses:
            return self._late(live, requests, answers, timing)
        return BatchResult(answers, timing)  # type: ignore[arg-type]  # none is None

    def _keep(
        self,
        batch: OpenBatch,
        free: Callable[[], None] | None,
        done: Callable[[BatchResult | Exception], None] | None = None,
    ) -> None:
        """Report its end when that comes; the link reports it where the model has ended."""
        batch.free, batch.done = free, done
        if free is not None and batch.late is not None:
            self._room.offer(free)

    def cancel(self, request: InferenceRequest) -> None:
        self._gone.append(request)
        super().cancel(request)

    def _note_gone(self, live: LiveBatch, requests: Sequence[InferenceRequest]) -> None:
        gone = set(map(id, self._gone))
        live.cancelled.update(index for index, request in enumerate(requests) if id(request) in gone)
        self._gone.clear()

    # Requests to the model

    def _received(self, requests: Sequence[InferenceRequest], live: LiveBatch) -> list[RequestRecord]:
        received: list[RequestRecord] = []
        run: list[InferenceRequest] = []
        key: list[TensorKey] | None = None
        template: object | None = None
        for request in requests:
            if template is None or request.template is not template:  # else its inputs are those of the one before
                template = request.template
                own = [(tensor.name, tensor.datatype, tensor.shape) for tensor in request.inputs]
                if own != key:
                    if key is not None:
                        self._receive(run, key, live, received)
                    run, key = [], own
            run.append(request)
        if key is not None:
            self._receive(run, key, live, received)
        return received

    def _receive(
        self, run: Sequence[InferenceRequest], key: list[TensorKey], live: LiveBatch, received: list[RequestRecord]
    ) -> None:
        """Add requests of one schema."""
        names, first = self._outputs, len(received)
        received += received_records(inputs_of(run, self._schema(key)), live, self._plain, first)
        for index, about in about_requests(run, names):
            describe_request(received[first + index], about)

    def _schema(self, key: list[TensorKey]) -> Schema:
        known = tuple(key)
        schema = self._known_schemas.get(known)
        if schema is None:
            schema = Schema(b"", tuple((name, datatype.number, shape) for name, datatype, shape in key))
            if len(self._known_schemas) >= MOST_SCHEMAS:
                self._known_schemas.clear()
            self._known_schemas[known] = schema
        return schema

    # What it answers

    def _outcomes(
        self,
        requests: Sequence[InferenceRequest],
        received: Sequence[RequestRecord],
        responses: Sequence[ModelResponse | None],
    ) -> tuple[list[Outcome | None], list[LargeOutput]]:
        """For each request; None for those that their response senders answer. The data of large outputs is still to be
        set."""
        name, version = self._spec.source.name, self._spec.source.version
        answers: list[Outcome | None] = []
        large: list[LargeOutput] = []
        for request, made, response in zip(requests, received, responses, strict=True):
            if response is None or made.reply is not None:
                otherwise = answered_otherwise(made, response)
                if otherwise:
                    answers.append(None if otherwise == LATER else Rescheduled())
                    continue
            assert response is not None  # or it would be answered otherwise
            tensors, error, given = response._parts
            if error is not None:
                code, text = crossing(error)
                answers.append(error_of((code, _text(text))))
                continue
            names = made.header.output_names
            outputs = []
            for tensor in tensors:
                if tensor._name in names:
                    data = tensor._raw()
                    outputs.append(Tensor(tensor._name, DATATYPES[tensor._number], tensor._shape, data))
                    if type(data) is memoryview and type(tensor) is ModelTensor and tensor._encoded is None:
                        outputs[-1].data = b""
                        large.append((outputs[-1], tensor._array))
            parameters = given and json.loads(encode_json(given))
            answers.append(InferenceResponse(name, version, outputs, request.id, parameters))
        return answers, large

    def _failed(
        self, live: LiveBatch, requests: Sequence[InferenceRequest], error: BaseException
    ) -> BatchResult | Internal:
        """What the model has answered before by response senders stays answered."""
        self._running = ()
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        told = fail(live, error.with_traceback(trace))["failure"]
        failure = FailedHead(_text(told["message"]), _text(told["traceback"]))
        self._link.log_failure(failure, tags_of_batch(requests))
        batch = self._deliver(live, requests)
        self.open.close(batch)
        if not batch.answers:
            return self._answers.failure(failure)
        answers = [batch.answers.get(index, self._answers.failure(failure)) for index in range(len(requests))]
        return BatchResult(answers, BatchTiming(0, 0, 0))

    def _late(
        self,
        live: LiveBatch,
        requests: Sequence[InferenceRequest],
        answers: Sequence[Outcome | None],
        timing: BatchTiming,
    ) -> BatchResult | OpenBatch:
        batch = self._deliver(live, requests)
        if batch.owes(answers, timing):
            return batch
        self.open.close(batch)
        return BatchResult(batch.merged(answers), timing)

    def _deliver(self, live: LiveBatch, requests: Sequence[InferenceRequest]) -> OpenBatch:
        """Give what response senders have sent to the batches that it answers: mostly to this one."""
        batch = self.open.by_number[live.number] = OpenBatch(live.number, requests, has_left=True)
        while self._hand_over.responses:
            frame = self._hand_over.responses.popleft()
            try:
                self._link.handlers[frame.kind](frame)
            except BrokenFrame as broken:
                self._link.channel.refuse(str(broken))
        return batch

    def _warn(self, taken_ns: int) -> None:
        if not self._is_slow:
            self._is_slow = True
            logger.warning(
                "model instance '%s': execute took %.0f ms in the server's loop, where nothing else could be done "
                "meanwhile; ISOLATION in_process or process would be better for it",
                self._spec.name,
                taken_ns / 1e6,
            )


def _text(text: str) -> str:
    """Without what no client could be sent."""
    return text.encode("utf-8", "replace").decode()
