"""Handlers of relayed calls: whatever method a client calls, the core's edge is called with the same messages."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass

import trio
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.metadata import decode_grpc_message

from protocol.errors import ServerError, Unavailable
from protocol.grpc.call.framing import Message, MessageDeframer, frame
from protocol.grpc.call.headers import Header
from protocol.grpc.call.stream import Stream
from protocol.grpc.relay.upstream import UpstreamCall, UpstreamLost, Upstreams

_LOST = "the server has not answered: the call was cut off"
# Of the connection, or of messages, which go on as they are when they are decompressed.
_OWN = frozenset((b"grpc-encoding", b"grpc-accept-encoding"))
_NOT_TRAILERS = frozenset((b":status", b"content-type", b"grpc-accept-encoding", b"x-request-id"))
_COMPRESSED = ("/inference.GRPCInferenceService/ModelInfer", "/inference.GRPCInferenceService/ModelStreamInfer")
_LARGEST_MESSAGE = 2**32


class EveryMethod(Mapping[str, Handler]):
    """One handler for every method, but for those that have their `own`; which others there are is the core's to
    know."""

    def __init__(self, handler: Handler, own: Mapping[str, Handler] | None = None) -> None:
        self._handler = handler
        self._own = own or {}

    def __getitem__(self, method: str) -> Handler:
        return self._own.get(method, self._handler)

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


@dataclass(frozen=True, slots=True)
class Relay:
    """`compression_level` is that of responses to inference requests, which are compressed here."""

    upstreams: Upstreams
    compression_level: int = 0

    def handler(self) -> Handler:
        return Handler(self.handle, Cardinality.STREAM_STREAM, memoryview, bytes)

    async def handle(self, stream: Stream) -> None:
        """Relay one call; its deadline is kept by the core, which logs what becomes of it."""
        await self._relay(stream, None)

    async def relay_message(self, stream: Stream, message: memoryview) -> None:
        """As `handle`, for a unary call whose message was read."""
        await self._relay(stream, message)

    async def answer(self, stream: Stream, message: memoryview, respond: Callable[[Message], Awaitable[None]]) -> None:
        """Have one message of a stream answered, by a call of its own. There is a response at least.

        Raises:
            Unavailable: the core has not answered.
            GRPCError: it has ended the call by this error, as it does in a stream that ends as its requests do.
        """
        has_answered = False
        try:
            call = await self.upstreams.call(stream.peer, _headers(stream))
        except UpstreamLost:
            raise Unavailable(_LOST) from None
        try:
            await call.send(frame([message]))
            call.end()
            deframer = MessageDeframer(_LARGEST_MESSAGE)
            while data := await call.receive():
                deframer.feed(data)
                while (found := deframer.next_frame()) is not None:
                    has_answered = True
                    await respond(bytes(found.payload))
        except UpstreamLost:
            raise Unavailable(_LOST) from None
        finally:
            call.close()
        assert call.trailers is not None
        status = _value(call.trailers, b"grpc-status") or b""
        if status != b"0" and status.isdigit():
            raise GRPCError(
                Status(int(status)), decode_grpc_message((_value(call.trailers, b"grpc-message") or b"").decode())
            )
        if not has_answered or not status:
            raise Unavailable(_LOST)

    async def _relay(self, stream: Stream, message: memoryview | None) -> None:
        stream.is_unlogged = True  # here
        stream.deadline = math.inf
        if stream.scope is not None:
            stream.scope.deadline = math.inf
        if self.compression_level and stream.method in _COMPRESSED:
            stream.compress_responses(self.compression_level)
        try:
            call = await self.upstreams.call(stream.peer, _headers(stream))
        except UpstreamLost:
            raise Unavailable(_LOST) from None
        try:
            await _Exchange(stream, call, message).run()
        finally:
            call.close()


class _Exchange:
    """Both directions of one call. Its one `message` is there, or all are read."""

    def __init__(self, stream: Stream, call: UpstreamCall, message: memoryview | None) -> None:
        self._stream = stream
        self._call = call
        self._message = message
        self._failure: Exception | None = None

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_requests, nursery.cancel_scope)
            try:
                await self._send_responses()
            except UpstreamLost:
                self._failure = self._failure or Unavailable(_LOST)
            except (ServerError, StreamTerminatedError) as error:
                self._failure = error
            nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _send_requests(self, scope: trio.CancelScope) -> None:
        try:
            if self._message is not None:
                await self._call.send(frame([self._message]))
            else:
                while (message := await self._stream.recv_message()) is not None:
                    await self._call.send(frame([message]))
            self._call.end()
        except UpstreamLost:
            return  # the other task sees it
        except ServerError as error:
            self._failure = error
            scope.cancel()

    async def _send_responses(self) -> None:
        stream, call = self._stream, self._call
        deframer = MessageDeframer(_LARGEST_MESSAGE)
        while data := await call.receive():
            deframer.feed(data)
            while (found := deframer.next_frame()) is not None:
                await stream.send_message([found.payload])
        assert call.trailers is not None
        stream.trailers = [header for header in call.trailers if header[0] not in _NOT_TRAILERS]
        if (request_id := _value(call.trailers, b"x-request-id")) is not None:
            stream.origin.request_id = request_id


def _headers(stream: Stream) -> list[Header]:
    """As they go on."""
    return [(name, value) for name, value in stream.sent_headers if name not in _OWN]


def _value(headers: object, name: bytes) -> bytes | None:
    assert isinstance(headers, list)
    found: list[Header] = headers
    return next((value for key, value in found if key == name), None)
