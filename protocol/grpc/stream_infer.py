"""ModelStreamInfer: many requests in flight on one stream.

One task reads requests, and each runs in a task of its own. Responses of models that give one are written in the order
in which their requests were read, all that are ready in one write; those of decoupled models as they come. A request
that fails is answered with its error message, and the stream goes on. Source: Triton's gRPC streaming extension.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import trio
from grpclib.exceptions import StreamTerminatedError

from protocol.errors import InvalidArgument, NotFound, ServerError, Unavailable
from protocol.grpc.framing import Message
from protocol.grpc.in_order import AnswerOrder
from protocol.grpc.infer import InferCall, send_traced
from protocol.grpc.infer_codec import (
    DecodedRequest,
    RequestNames,
    encode_empty_final,
    encode_stream_error,
    encode_stream_response,
)
from protocol.grpc.request_forms import ReadRequest, RequestForms
from protocol.grpc.request_tasks import RequestTasks
from protocol.grpc.status import status_of
from protocol.grpc.stream import SHUTTING_DOWN, Stream
from protocol.messages import InferenceResponse
from protocol.placement import PlacedRequest
from protocol.server_settings import Trace
from protocol.services import EdgeServices
from protocol.shared_memory.lease import Lease


@dataclass(slots=True, eq=False)
class _Request:
    """A request that was read.

    `failure` is what was wrong with it before the core saw it. `lease` and `placed` are there if it uses shared memory
    or classification. `memory` is what its message counts for in the stream. `response` is what a model gave that gives
    one, `ending` the error that ends the stream in its place.
    """

    read: ReadRequest | None = None
    decoded: DecodedRequest | None = None
    is_decoupled: bool = False
    failure: Exception | None = None
    trace: Trace | None = None
    lease: Lease | None = None
    placed: PlacedRequest | None = None
    has_answered: bool = False
    memory: int = 0
    response: Message = b""
    ending: Exception | None = None

    @property
    def names(self) -> RequestNames | None:
        return None if self.read is None else self.read.names

    def close(self) -> None:
        if self.lease is not None:
            self.lease.__exit__(None, None, None)
        if self.trace is not None:
            self.trace.end()


class StreamInfer:
    """One ModelStreamInfer call. At most `max_in_flight` requests are read and not yet answered."""

    def __init__(self, services: EdgeServices, forms: RequestForms, stream: Stream, max_in_flight: int) -> None:
        self._services = services
        self._core = services.core
        self._stream = stream
        self._forms = forms
        self._call = InferCall(services, forms, stream)
        self._in_flight = trio.Semaphore(max_in_flight)
        self._answers = AnswerOrder(self._send_answer)
        self._sending = trio.Lock()
        self._ends_on_error = stream.header("triton_grpc_error") == "true"
        self._ending: Exception | None = None
        self._requests = trio.CancelScope()

    async def run(self) -> None:
        """Returns when the client has ended its side and every request is answered.

        Raises:
            ServerError: the stream itself failed (a broken frame, the server stops), after every request that was
                read is answered; or a request did, and the client asked for the real status (`triton_grpc_error`).
        """
        try:
            async with trio.open_nursery() as nursery:
                self._requests = nursery.cancel_scope
                tasks = RequestTasks(nursery, self._answer)
                try:
                    await self._read(tasks)
                finally:
                    tasks.end()
        finally:
            for request in self._answers:  # their tasks have gone, and nobody takes the answers
                request.close()
        if self._ending is not None:
            raise self._ending

    async def _read(self, tasks: RequestTasks[_Request]) -> None:
        """All requests that are there are read without a checkpoint between them, so they can share a batch."""
        while True:
            try:
                self._in_flight.acquire_nowait()
            except trio.WouldBlock:
                await self._in_flight.acquire()
            waiting = time.monotonic_ns()
            try:
                data = await self._stream.recv_message()
            except ServerError as error:
                self._ending = error
                return
            if data is None:
                return
            request = await self._prepare(data, waiting)
            if not request.is_decoupled:
                self._answers.expect(request)
            tasks.start(request)

    async def _prepare(self, data: memoryview, waiting_ns: int) -> _Request:
        """Everything up to the core. Not in the request's task, since it must not change the order of requests."""
        request = _Request(memory=self._stream.take_message_memory())
        try:
            await self._fill(request, data, waiting_ns)
        except Exception as error:
            request.failure = error
            request.is_decoupled = False
        except BaseException:  # cancelled while inputs were copied
            request.close()
            raise
        return request

    async def _fill(self, request: _Request, data: memoryview, waiting_ns: int) -> None:
        read = request.read = self._forms.read(data)
        if self._stream.is_draining:
            raise Unavailable(SHUTTING_DOWN)
        request.trace = self._call.trace(read.model_name, waiting_ns, time.monotonic_ns())
        request.decoded = self._call.decode(read, data, request.trace)
        inference, placement, _ = request.decoded
        request.is_decoupled = self._core.is_decoupled(inference.model_name, inference.model_version)
        if placement is not None:
            request.lease = self._services.shared_memory.lease()
            request.placed = await PlacedRequest.fetch(inference, placement, request.lease, self._core)

    # One request, in a task of its own.

    async def _answer(self, request: _Request) -> None:
        try:
            if request.is_decoupled:
                await self._run_decoupled(request)
            else:
                await self._run(request)
                await self._answers.complete(request)
        except StreamTerminatedError:  # and the call is being cancelled
            return

    async def _run(self, request: _Request) -> None:
        """The response, or what takes its place."""
        try:
            if request.failure is not None:
                raise request.failure
            assert request.decoded is not None
            response = await self._core.infer(request.decoded.request)
            if request.placed is not None:
                response = await request.placed.deliver(response)
            request.response = encode_stream_response(response)
        except Exception as error:
            self._fail(request, error)

    async def _send_answer(self, request: _Request) -> None:
        if request.ending is not None:
            request.close()
            self._end(request.ending)
        else:
            await self._send(request, request.response)
            self._finish(request)

    async def _run_decoupled(self, request: _Request) -> None:
        assert request.decoded is not None
        assert request.read is not None

        async def respond(response: InferenceResponse) -> None:
            if request.placed is not None:
                response = await request.placed.deliver(response)
            await self._send(request, encode_stream_response(response))

        try:
            try:
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

    def _fail(self, request: _Request, error: Exception) -> None:
        # What is wrong with a request, or with the model that it names, never ends the stream.
        is_issued = request.failure is None and (
            request.has_answered or not isinstance(error, (InvalidArgument, NotFound))
        )
        if self._ends_on_error and is_issued:
            request.ending = error
        else:
            _, message = status_of(error, self._stream.method)
            request.response = encode_stream_error(message, request.names)

    def _end(self, error: Exception) -> None:
        self._ending = self._ending or error
        self._requests.cancel()

    def _finish(self, request: _Request) -> None:
        """It is answered whole."""
        request.close()
        self._stream.release(request.memory)
        self._in_flight.release()

    async def _send(self, request: _Request, response: Message) -> None:
        """Whole: a large message takes several frames."""
        try:
            self._sending.acquire_nowait()
        except trio.WouldBlock:
            await self._sending.acquire()
        try:
            request.has_answered = True
            if request.trace is None:
                await self._stream.send_message(response)
            else:
                await send_traced(self._stream, response, request.trace)
        finally:
            self._sending.release()
