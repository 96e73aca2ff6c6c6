"""ModelStreamInfer: many requests in flight on one stream.

One task reads requests, or a callback where they have come whole. They are submitted without a task, and answered from
callbacks, except those that are traced or use shared memory, and those to decoupled models: each of these has a task,
the latter since a slow client is to slow its model down. Responses of models that give one are written in the order in
which their requests were read, all that are ready in one write; those of decoupled models as they come. A request that
fails is answered with its error message, and the stream goes on. Cancelled, all its requests are given up. Source:
Triton's gRPC streaming extension.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import trio
from grpclib.exceptions import StreamTerminatedError

from protocol.core import Submitted
from protocol.errors import InvalidArgument, NotFound, Overloaded, QuotaExceeded, ServerError, Unavailable
from protocol.grpc.call.framing import Message
from protocol.grpc.call.stream import SHUTTING_DOWN, Stream
from protocol.grpc.codec.infer import (
    DecodedRequest,
    encode_empty_final,
    encode_stream_error,
    encode_stream_response,
)
from protocol.grpc.codec.request_templates import RequestTemplates
from protocol.grpc.inference.failed_calls import note_failure
from protocol.grpc.inference.in_order import AnswerOrder
from protocol.grpc.inference.infer import InferCall, charged, describe, measured, read_request, send_traced
from protocol.grpc.inference.request_tasks import RequestTasks
from protocol.grpc.inference.stream_access import StreamAccess
from protocol.grpc.inference.streamed_request import StreamedRequest
from protocol.grpc.status import status_of
from protocol.limits.response_memory import ResponseMemory
from protocol.log.call_origin import StreamedOrigin
from protocol.log.failure_log import FailedRequest
from protocol.messages import InferenceResponse
from protocol.reactor.replies import Replies
from protocol.services import EdgeServices
from protocol.shared_memory.placement import PlacedRequest
from protocol.sync.turns import PacedBursts
from protocol.sync.wakeup import Wakeup

# Requests of streams that are read without a wait between them: each takes some 0.1 ms until it has been begun, in a
# task of its own where its model is decoupled.
_READING = PacedBursts("requests of streams", burst=64, seconds=0.001, each=16)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Where the core is in another process. `answer` has the request in a message answered by the edge there, whose
    response messages it passes on; `know` has at hand what inference asks of a model of that name and version, and of
    these outputs."""

    answer: Callable[[memoryview, Callable[[Message], Awaitable[None]]], Awaitable[None]]
    know: Callable[[str, int, tuple[str, ...]], Awaitable[None]]


class StreamInfer:
    """One ModelStreamInfer call. At most `max_in_flight` requests are read and not yet answered.

    With `elsewhere` the core is that of another process, which does not refuse a decoupled model at once, so it is
    asked before; and requests that use clients' shared memory are answered elsewhere.
    """

    def __init__(
        self,
        services: EdgeServices,
        templates: RequestTemplates,
        replies: Replies | None,
        stream: Stream,
        max_in_flight: int,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._elsewhere = elsewhere
        self._services = services
        self._core = services.core
        self._account = stream.account
        self._stream = stream
        self._templates = templates
        self._call = InferCall(services, templates, stream)
        self.origin = StreamedOrigin(stream.origin)
        self._access = StreamAccess(services.access_log, stream, self.origin)
        self.log_end = self._access.end
        self._logs = services.access_log.is_on
        self._left = max_in_flight  # how many more requests may be read
        self._has_left = Wakeup()
        self._submits = replies is not None
        self._delivered = Replies() if replies is None else replies
        self._answers = AnswerOrder(self._send_answer, self._send_answer_at_once)
        self._is_answered = Wakeup()
        self._sending = trio.Lock()
        self._sends = 0  # that have the lock, or wait for it
        self._has_read = False  # all requests
        self._ends_on_error = stream.header("triton_grpc_error") == "true"
        self._ending: Exception | None = None
        self._requests = trio.CancelScope()
        self._tasks: RequestTasks[StreamedRequest] | None = None
        self._response_memory = ResponseMemory(services.memory)

    async def run(self) -> None:
        """Returns when the client has ended its side and every request is answered.

        Raises:
            ServerError: the stream itself failed (a broken frame, the server stops), after every request that was
                read is answered; or a request did, and the client asked for the real status (`triton_grpc_error`).
        """
        try:
            async with trio.open_nursery() as nursery:
                self._requests = nursery.cancel_scope
                self._tasks = tasks = RequestTasks(nursery, self._answer)
                if self._submits:
                    self._stream.offer = self._submit_at_once
                try:
                    await self._read(tasks)
                    self._has_read = True
                    while not self._answers.is_empty:
                        await self._is_answered.wait()
                finally:
                    self._stream.offer = None
                    tasks.end()
        finally:
            for request in self._answers:  # their tasks have gone, and nobody takes the replies
                self._stream.answers.give(request.waiting)
                request.close()
        if self._ending is not None:
            raise self._ending

    async def _read(self, tasks: RequestTasks[StreamedRequest]) -> None:
        """All requests that are there are read without a checkpoint between them, so they can share a batch, unless
        there are very many, of this stream and others."""
        while True:
            while not self._left:
                await self._has_left.wait()
            self._left -= 1
            waiting = time.monotonic_ns()
            try:
                data = await self._stream.recv_message()
            except ServerError as error:
                self._ending = error
                return
            if data is None:
                return
            await _READING.wait()
            request = await self._prepare(data, waiting, can_submit=self._submits and not tasks.waiting)
            if not request.is_decoupled:
                self._answers.expect(request)
            if request.submitted is None:
                tasks.start(request)
            del data, request  # a stream that waits for the next one keeps no tensors, and no client's shared memory

    async def _prepare(self, data: memoryview, waiting_ns: int, *, can_submit: bool) -> StreamedRequest:
        """Everything up to the core, and to give it a plain request. Not in a task of the request, since it must not
        change the order of requests."""
        request = self._begun(self._stream.take_message_memory(), data)
        try:
            await self._fill(request, data, waiting_ns, can_submit=can_submit)
        except Exception as error:
            request.failure = error
            request.is_decoupled = False
        except BaseException:  # cancelled while inputs were copied
            request.close()
            raise
        return request

    def _begun(self, memory: int, data: memoryview) -> StreamedRequest:
        request = StreamedRequest(self._delivered, stream=self, memory=memory)
        self._access.begin(request, data)
        return request

    async def _fill(self, request: StreamedRequest, data: memoryview, waiting_ns: int, *, can_submit: bool) -> None:
        request.read_ns = time.monotonic_ns()
        read = request.read = await read_request(self._templates, data)
        if self._stream.is_draining:
            raise Unavailable(SHUTTING_DOWN)
        request.trace = self._call.trace(read.model_name, waiting_ns, request.read_ns)
        request.decoded = self._call.decode(read, data, request.trace, self.origin)
        inference, placement = request.decoded.request, request.decoded.placement
        inference.response_memory = self._response_memory
        if (elsewhere := self._elsewhere) is not None:
            classes = () if placement is None else tuple(placement.classes)
            await elsewhere.know(inference.model_name, inference.model_version, classes)
            request.is_decoupled = self._core.is_decoupled(inference.model_name, inference.model_version)
            if placement is not None and placement.uses_regions:
                request.message = data
                request.trace = None  # there it may have one
                request.is_logged = True  # by that edge, which charges it, too
                return
            can_submit = can_submit and not request.is_decoupled
        if self._account is not None:
            request.charge = inference.charge = await self._account.admit_when_known(read.model_name, len(data))
        inference.trace = measured(request.record, request.trace)
        if can_submit and placement is None and request.trace is None:
            request.submitted = self._core.submit(inference, request)
            if request.is_decoupled:
                request.let_go().end()
            elif request.reply is not None:
                self._note_refusal(request)
            return
        request.is_decoupled = self._core.is_decoupled(inference.model_name, inference.model_version)
        if placement is not None:
            request.lease = self._services.shared_memory.lease()
            request.placed = await PlacedRequest.fetch(inference, placement, request.lease, self._core)

    # One request without a task.

    def _submit_at_once(self, data: bytes | memoryview, memory: int) -> bool:
        """As `_read` does for a plain request. Implements `Stream.offer`."""
        assert self._tasks is not None
        if not self._left or self._stream.is_draining or self._services.trace.is_sampling or self._tasks.waiting:
            return False
        request = StreamedRequest(self._delivered, stream=self, memory=memory)
        try:
            request.read = self._templates.read(data)
            request.decoded = self._call.decode(request.read, data, None, self.origin)
        except Exception:  # the task that reads meets it again, and answers with it
            return False
        if request.decoded.placement is not None or self._may_be_decoupled(request.decoded):
            return False
        inference = request.decoded.request
        if self._logs:
            self._access.begin(request, data)
            inference.trace = request.record
        inference.response_memory = self._response_memory
        if self._account is not None:
            if self._account.may_be_refused(request.read.model_name, len(data)):
                return False
            request.charge = inference.charge = self._account.admit(request.read.model_name, len(data))
        request.submitted = self._core.submit(inference, request, later=True)
        self._left -= 1
        if request.is_decoupled:
            request.let_go().end()
            request.read_ns = time.monotonic_ns()
            self._tasks.start(request)
            return True
        if request.reply is not None:
            self._note_refusal(request)
        self._answers.expect(request)
        return True

    def _may_be_decoupled(self, decoded: DecodedRequest) -> bool:
        """Where the core itself does not say so as soon as it is submitted."""
        if self._elsewhere is None:
            return False
        try:
            return self._core.is_decoupled(decoded.request.model_name, decoded.request.model_version)
        except ServerError:  # the task that reads meets it again
            return True

    def _note_refusal(self, request: StreamedRequest) -> None:
        """The core has answered a request at once. Where its model does not serve, no request was issued."""
        try:
            assert request.decoded is not None
            inference = request.decoded.request
            self._core.is_decoupled(inference.model_name, inference.model_version)
        except ServerError as error:
            request.failure = error

    def take(self, request: StreamedRequest) -> None:
        """Its reply is there. Must not wait."""
        if request.submitted is None:  # given up
            return
        assert self._tasks is not None
        submitted, request.submitted = request.submitted, None  # as `let_go` does
        submitted.end()
        try:
            if isinstance(request.reply, InferenceResponse):
                request.response = charged(request.charge, encode_stream_response(request.reply))
            else:
                assert request.reply is not None
                self._fail(request, request.reply, submitted)
        except Exception as error:
            self._fail(request, error, submitted)
        if not self._answers.complete_at_once(request):
            self._tasks.start(request)
        if not (request.has_answered or request.ending is not None):
            self._count(request, submitted)
        if self._has_read:
            self._is_answered.wake()

    def fail(self, error: Exception) -> None:
        """`take` has raised this: nobody knows how far it has come, so the stream ends."""
        self._end(error)

    def _send_answer_at_once(self, request: StreamedRequest) -> bool:
        if request.ending is not None:
            self._end_by(request, request.ending)
        elif self._sends or not self._stream.send_at_once(request.response, self._delivered):
            return False
        else:
            request.has_answered = True
            if self._logs:
                request.bytes_out += _size(request.response)
            self._finish(request)
        return True

    # One request, in a task of its own.

    async def _answer(self, request: StreamedRequest) -> None:
        try:
            if request.is_decoupled:
                await self._run_decoupled(request)
            elif request.reply is not None:  # it is answered, and only to be sent
                await self._answers.send_ready()
            else:
                await self._run(request)
                self._count(request)
                await self._answers.complete(request)
        except StreamTerminatedError:  # and the call is being cancelled
            return
        self._is_answered.wake()

    async def _run(self, request: StreamedRequest) -> None:
        """The response, or what takes its place."""
        try:
            if request.failure is not None:
                raise request.failure
            if request.message is not None:
                request.response = await self._answer_elsewhere(request.message)
                return
            assert request.decoded is not None
            response = await self._core.infer(request.decoded.request)
            if request.placed is not None:
                response = await request.placed.deliver(response)
            request.response = charged(request.charge, encode_stream_response(response))
        except Exception as error:
            self._fail(request, error)

    def _count(self, request: StreamedRequest, submitted: Submitted | None = None) -> None:
        """Its response waits: for its turn, or for the client to make room. Where there is no memory for that an error
        takes its place."""
        response = request.response
        size = _size(response)
        try:
            self._stream.answers.take(size)
        except Overloaded as error:
            request.reply = error  # and lets go of the response
            self._fail(request, error, submitted)
        else:
            request.waiting = size

    async def _send_answer(self, request: StreamedRequest) -> None:
        if request.ending is not None:
            self._end_by(request, request.ending)
        else:
            await self._send(request, request.response)
            self._finish(request)

    async def _run_decoupled(self, request: StreamedRequest) -> None:
        assert request.decoded is not None
        assert request.read is not None

        async def respond(response: InferenceResponse) -> None:
            if request.placed is not None:
                response = await request.placed.deliver(response)
            await self._send(request, charged(request.charge, encode_stream_response(response)))

        try:
            try:
                if request.message is not None:
                    assert self._elsewhere is not None
                    await self._elsewhere.answer(request.message, partial(self._send, request))
                    self._finish(request)
                    return
                was_told = await self._core.infer_stream(request.decoded.request, respond)
                if not was_told and request.decoded.wants_empty_final:
                    await self._send(request, encode_empty_final(request.read.names))
            except StreamTerminatedError:
                raise
            except Exception as error:
                self._fail(request, error)
                await self._send_answer(request)
            else:
                self._finish(request)
        except BaseException:
            request.close()
            raise

    async def _answer_elsewhere(self, message: memoryview) -> Message:
        assert self._elsewhere is not None
        responses: list[Message] = []

        async def keep(response: Message) -> None:
            responses.append(response)

        await self._elsewhere.answer(message, keep)
        return responses[-1]

    def _fail(self, request: StreamedRequest, error: Exception, submitted: Submitted | None = None) -> None:
        method = self._stream.method
        request.error = error
        note_failure(self._services.failure_log, method, error, partial(self._describe, request, submitted))
        # What is wrong with a request, or with the model that it names, never ends the stream, nor does a quota.
        is_issued = request.failure is None and (
            request.has_answered or not isinstance(error, (InvalidArgument, NotFound, QuotaExceeded))
        )
        if self._ends_on_error and is_issued:
            request.ending = error
        else:
            _, message = status_of(error, method)
            request.response = encode_stream_error(message, request.names, self._id_of(request))

    def _describe(self, request: StreamedRequest, submitted: Submitted | None) -> FailedRequest:
        """What the log says of it."""
        if submitted is not None:
            return FailedRequest.of(submitted.request, trio.current_time() - submitted.arrival)
        return describe(request.read, request.read_ns, self.origin)

    def _id_of(self, request: StreamedRequest) -> str:
        return self.origin.tags("" if request.names is None else request.names.id).request_id

    def _end_by(self, request: StreamedRequest, error: Exception) -> None:
        """Its error is the stream's."""
        request.close()
        if self._ending is None:
            self._stream.noted_failure = error
        self._end(error)

    def _end(self, error: Exception) -> None:
        self._ending = self._ending or error
        self._requests.cancel()

    def _finish(self, request: StreamedRequest) -> None:
        """It is answered whole."""
        if self._logs:
            self.log_end(request)
        if request.waiting:
            self._stream.answers.give(request.waiting)
        if request.lease is not None or request.trace is not None or request.charge is not None:
            request.close()
        self._stream.incoming.release(request.memory)
        self._left += 1
        if self._left == 1:
            self._has_left.wake()

    async def _send(self, request: StreamedRequest, response: Message) -> None:
        """Whole: a large message takes several frames."""
        self._sends += 1
        try:
            try:
                self._sending.acquire_nowait()
            except trio.WouldBlock:
                await self._sending.acquire()
            try:
                request.has_answered = True
                request.bytes_out += _size(response)
                if request.trace is None:
                    await self._stream.send_message(response)
                else:
                    await send_traced(self._stream, response, request.trace)
            finally:
                self._sending.release()
        finally:
            self._sends -= 1


def _size(message: Message) -> int:
    return len(message) if isinstance(message, bytes) else sum(map(len, message))
