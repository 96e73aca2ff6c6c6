"""ModelStreamInfer: many requests in flight on one stream, answered in the order in which they were read.

A request that fails is answered with its error message, and the stream goes on. Source: Triton's gRPC streaming
extension, for models that give one response to each request.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio
from grpclib.exceptions import StreamTerminatedError

from protocol.core import InferenceCore
from protocol.errors import InvalidArgument, NotFound, ServerError, Unavailable
from protocol.grpc.infer_codec import (
    WireRequest,
    decode_request,
    encode_stream_error,
    encode_stream_response,
    parse_request,
)
from protocol.grpc.status import status_of
from protocol.grpc.stream import SHUTTING_DOWN, Stream


@dataclass(slots=True, eq=False)
class _Slot:
    """A request's place in the order of responses."""

    previous: trio.Event
    is_written: trio.Event


class StreamInfer:
    """One ModelStreamInfer call. At most `max_in_flight` requests are read and not yet answered."""

    def __init__(self, core: InferenceCore, stream: Stream, max_in_flight: int) -> None:
        self._core = core
        self._stream = stream
        self._in_flight = trio.Semaphore(max_in_flight)
        self._ends_on_error = stream.metadata.get("triton_grpc_error") == "true"
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
                try:
                    data = await self._stream.recv_message()
                except ServerError as error:
                    self._ending = error
                    break
                if data is None:
                    break
                slot = _Slot(last_written, trio.Event())
                last_written = slot.is_written
                nursery.start_soon(self._answer, data, slot, nursery.cancel_scope)
        if self._ending is not None:
            raise self._ending

    async def _answer(self, data: memoryview, slot: _Slot, requests: trio.CancelScope) -> None:
        response = await self._respond(data)
        await slot.previous.wait()
        if isinstance(response, Exception):
            self._ending = response
            requests.cancel()
            return
        try:
            await self._stream.send_message(response)
        except StreamTerminatedError:  # and the call is being cancelled
            return
        slot.is_written.set()
        self._in_flight.release()

    async def _respond(self, data: memoryview) -> bytes | Exception:
        """The serialized response; the exception itself where it has to end the stream."""
        wire: WireRequest | None = None
        try:
            wire = parse_request(data)
            if self._stream.is_draining:
                raise Unavailable(SHUTTING_DOWN)
            return encode_stream_response(await self._core.infer(decode_request(wire)))
        except Exception as error:
            # What is wrong with a request, or with the model that it names, never ends the stream.
            if self._ends_on_error and not isinstance(error, (InvalidArgument, NotFound)):
                return error
            _, message = status_of(error, self._stream.method)
            return encode_stream_error(message, wire)
