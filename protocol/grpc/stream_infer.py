"""ModelStreamInfer: many requests in flight on one stream.

One task reads requests, and each runs in a task of its own. Responses of models that give one are written in the order
in which their requests were read; those of decoupled models as they come. A request that fails is answered with its
error message, and the stream goes on. Source: Triton's gRPC streaming extension.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import trio
from grpclib.exceptions import StreamTerminatedError

from protocol.errors import InvalidArgument, NotFound, ServerError, Unavailable
from protocol.grpc.infer import InferCall, send_traced
from protocol.grpc.infer_codec import (
    DecodedRequest,
    RequestNames,
    encode_empty_final,
    encode_stream_error,
    encode_stream_response,
)
from protocol.grpc.request_forms import RequestForms
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
    or classification. `previous` is the response that has to be written before this one; None for a decoupled model,
    whose responses wait for none. `memory` is what its message counts for in the stream.
    """

    names: RequestNames | None = None
    decoded: DecodedRequest | None = None
    is_decoupled: bool = False
    failure: Exception | None = None
    trace: Trace | None = None
    lease: Lease | None = None
    placed: PlacedRequest | None = None
    previous: trio.Event | None = None
    is_written: trio.Event = field(default_factory=trio.Event)
    has_answered: bool = False
    memory: int = 0

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
        self._sending = trio.Lock()
        self._ends_on_error = stream.header("triton_grpc_error") == "true"
        self._ending: Exception | None = None

    async def run(self) -> None:
        """Returns when the client has ended its side and every request is answered.

        Raises:
            ServerError: the stream itself failed (a broken frame, the server stops), after every request that was
                read is answered; or a request did, and the client asked for the real status (`triton_grpc_error`).
        """
        async with trio.open_nursery() as nursery:
            last_written = trio.Event()
            last_written.set()
            while True:
                # Its checkpoint also lets the task before make its first step, so the core gets requests in order.
                await self._in_flight.acquire()
                waiting = time.monotonic_ns()
                try:
                    data = await self._stream.recv_message()
                except ServerError as error:
                    self._ending = error
                    break
                if data is None:
                    break
                request = await self._prepare(data, waiting)
                if not request.is_decoupled:
                    request.previous, last_written = last_written, request.is_written
                nursery.start_soon(self._answer, request, nursery.cancel_scope)
        if self._ending is not None:
            raise self._ending

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
        read = self._forms.read(data)
        request.names = read.names
        if self._stream.is_draining:
            raise Unavailable(SHUTTING_DOWN)
        request.trace = self._call.trace(request.names.model_name, waiting_ns, time.monotonic_ns())
        request.decoded = self._call.decode(read, data, request.trace)
        inference, placement, _ = request.decoded
        request.is_decoupled = self._core.is_decoupled(inference.model_name, inference.model_version)
        if placement is not None:
            request.lease = self._services.shared_memory.lease()
            request.placed = await PlacedRequest.fetch(inference, placement, request.lease, self._core)

    # One request, in a task of its own.

    async def _answer(self, request: _Request, requests: trio.CancelScope) -> None:
        try:
            await self._run(request)
        except StreamTerminatedError:  # and the call is being cancelled
            return
        except Exception as error:
            await self._fail(request, error, requests)
        finally:
            request.close()
        request.is_written.set()
        self._stream.release(request.memory)
        self._in_flight.release()

    async def _run(self, request: _Request) -> None:
        if request.failure is not None:
            raise request.failure
        assert request.decoded is not None
        assert request.names is not None
        inference = request.decoded.request
        if not request.is_decoupled:
            response = await self._core.infer(inference)
            await self._send_response(request, response)
            return

        async def respond(response: InferenceResponse) -> None:
            await self._send_response(request, response)

        was_told = await self._core.infer_stream(inference, respond)
        if not was_told and request.decoded.wants_empty_final:
            await self._send(request, encode_empty_final(request.names))

    async def _send_response(self, request: _Request, response: InferenceResponse) -> None:
        if request.placed is not None:
            response = await request.placed.deliver(response)
        await self._send(request, encode_stream_response(response))

    async def _fail(self, request: _Request, error: Exception, requests: trio.CancelScope) -> None:
        # What is wrong with a request, or with the model that it names, never ends the stream.
        is_issued = request.failure is None and (
            request.has_answered or not isinstance(error, (InvalidArgument, NotFound))
        )
        if self._ends_on_error and is_issued:
            if request.previous is not None:
                await request.previous.wait()
            self._ending = self._ending or error
            requests.cancel()
            return
        _, message = status_of(error, self._stream.method)
        try:
            await self._send(request, encode_stream_error(message, request.names))
        except StreamTerminatedError:  # and the call is being cancelled
            return

    async def _send(self, request: _Request, response: bytes) -> None:
        """In its turn, and whole: a large message takes several frames."""
        if request.previous is not None:
            await request.previous.wait()
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
