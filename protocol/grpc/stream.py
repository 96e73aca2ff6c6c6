"""One call, as its handler sees it: grpclib's server stream, on Trio.

Flow: connection (events) -> [stream] -> handler -> [stream] -> connection. The generated service bases call
`recv_message` and `send_message`; the connection feeds bytes in and decides how the call ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import trio
from grpclib.exceptions import StreamTerminatedError
from grpclib.stream import StreamIterator

from protocol.answers import Answers
from protocol.errors import DeadlineExceeded, InvalidArgument, PayloadTooLarge, ServerError, Unavailable
from protocol.grpc.codec import Codec
from protocol.grpc.compression import choose_encoding, compress, decompress
from protocol.grpc.framing import PREFIX_LENGTH, Frame, Message, MessageDeframer, frame
from protocol.grpc.headers import RESPONSE_HEADERS, Header
from protocol.grpc.output import Output
from protocol.grpc.receiving import ReceiveMemory
from protocol.grpc.request_head import RequestHead
from protocol.grpc.settings import PROGRESS, ConnectionLimits
from protocol.messages import Buffer
from protocol.wakeup import WaitingTasks

SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."

_TRANSPORT_HEADERS = frozenset((b"te", b"content-type"))

# Inflating more than so many compressed bytes, or compressing more, would hold up every other call.
_INFLATE_IN_THREAD_ABOVE = 4096
_COMPRESS_IN_THREAD_ABOVE = 65536


class Stream(StreamIterator[Any]):
    """A call in progress.

    Attributes:
        id: the HTTP/2 stream's.
        method: the path, `/package.Service/Method`.
        handle: what serves the call.
        deadline: by the client, in seconds of Trio's clock.
        scope: what the handler runs in, from its start.
        has_ended: the client has sent all that it will send.
        has_sent_headers: the response has begun.
        is_closed: the client has given the call up, or is gone; nothing can be sent.
        offer: called with each request message that comes by itself and whole while the handler waits for one; whether
            it is taken, so that the handler does not get it. Who takes it has to `release` it, as if it had it from
            `recv_message`.
        on_close: called when the call has ended, whether its handler has run or not.
        is_draining: the server stops; the handler should take no more requests.
    """

    def __init__(
        self,
        output: Output,
        stream_id: int,
        head: RequestHead,
        codec: Codec,
        limits: ConnectionLimits,
        memory: ReceiveMemory,
    ) -> None:
        handler = head.handler
        assert handler is not None
        self.id = stream_id
        self.method = head.method
        self.handle = handler.func
        self.deadline = math.inf if head.timeout is None else trio.current_time() + head.timeout
        self.scope: trio.CancelScope | None = None
        self.has_ended = False
        self.has_sent_headers = False
        self.is_closed = False
        self.is_draining = False
        self.offer: Callable[[memoryview], bool] | None = None
        self.on_close: Callable[[], None] | None = None
        self._output = output
        self._request_type = handler.request_type
        self._reply_type = handler.reply_type
        self._is_client_streaming = handler.cardinality.client_streaming
        self._is_server_streaming = handler.cardinality.server_streaming
        self._headers = head.headers
        self._codec = codec
        self._limits = limits
        self._encoding = head.encoding
        self._response_encoding: str | None = None
        self._compression_level = 0
        self._deframer = MessageDeframer(limits.max_message_size)
        self._unacknowledged = 0  # bytes, with padding
        self._memory = memory
        self._held = 0  # bytes counted there
        self._message_held = 0  # of those, the bytes of the message that the handler got last
        self._refusal: ServerError | None = None  # all that comes is dropped
        self._changed = WaitingTasks()
        self._awaits_more = False  # of a message that has begun, and nothing less than all of it
        self._progress_by = 0.0  # when the message that is awaited must have made progress; 0 while none is
        self._progress_from = 0

    # What the handler asks and calls.

    def header(self, name: str) -> str | None:
        """The first value of a header by its name in lower case; None where the call has none."""
        wanted = name.encode("utf-8", "surrogatepass")
        for key, value in self._headers:
            if key == wanted:
                return value.decode("latin-1")
        return None

    def forwardable_headers(self) -> list[tuple[str, str]]:
        """The client's metadata as it was sent (binary values in base64), without what gRPC itself uses."""
        return [
            (key.decode("latin-1"), value.decode("latin-1"))
            for key, value in self._headers
            if not key.startswith((b":", b"grpc-")) and key not in _TRANSPORT_HEADERS
        ]

    def compress_responses(self, level: int) -> None:
        """Compress the response messages, if the client reads one of our encodings. Before the first one is sent."""
        self._response_encoding = choose_encoding(self.header("grpc-accept-encoding"))
        self._compression_level = level

    async def recv_message(self) -> Any:
        """The next request message, None after the last one of a client's stream.

        Raises:
            InvalidArgument: no message where there must be one, more than one, one that is cut off or broken.
            PayloadTooLarge: a message over the limit, refused when its length is known; or too many of them.
            DeadlineExceeded: the rest of a message does not come.
            Unavailable: the server stops, and nothing more has come on this client's stream.
        """
        if self._message_held:
            self.release(self.take_message_memory())
        next_frame = await self._next_frame()
        if next_frame is None:
            if self._is_client_streaming:
                return None
            raise InvalidArgument(f"{self.method} takes one request message, got none")
        if not self._is_client_streaming:
            await self._expect_end()
        message: memoryview | bytes = next_frame.payload
        self._message_held = PREFIX_LENGTH + len(message)
        if next_frame.is_compressed:
            message = await self._decompress(next_frame.payload)
        return self._codec.decode(message, self._request_type)

    def take_message_memory(self) -> int:
        """The bytes that the last message counts for. Whoever takes them has to `release` them when it has no more use
        for the message; else they are released with the next `recv_message`, or with the call."""
        size, self._message_held = self._message_held, 0
        return size

    def release(self, size: int) -> None:
        self._held -= size
        self._memory.give(size)

    async def send_message(self, message: Any) -> None:
        """Send a response message, the headers before the first one. Waits while the client reads slowly. What a large
        one is made of must not change any more.

        Raises:
            grpclib.exceptions.StreamTerminatedError: the client has gone, and the call is being cancelled.
        """
        serialized = self._codec.encode(message, self._reply_type)
        parts = frame(serialized) if self._response_encoding is None else await self._compressed_frame(serialized)
        try:
            if not self.has_sent_headers:
                self.has_sent_headers = True
                self._output.send_headers(self.id, self._response_headers())
            await self._output.send_data(self.id, parts)
        except StreamTerminatedError:
            self.terminate()
            raise
        if self._is_server_streaming:  # a unary response leaves with its trailers
            self._output.flush()

    def send_at_once(self, message: Any, answers: Answers) -> bool:
        """As `send_message`, but that the response leaves when all answers that are there have been delivered. False,
        and nothing is done, where that takes more than to encode it, or the client has gone."""
        if self._response_encoding is not None or self.is_closed:
            return False
        headers = () if self.has_sent_headers else RESPONSE_HEADERS
        if not self._output.send_at_once(self.id, headers, frame(self._codec.encode(message, self._reply_type))):
            return False
        self.has_sent_headers = True
        self._output.write_after(answers)
        return True

    async def wait_draining(self) -> None:
        """Returns when the server stops."""
        while not self.is_draining:
            await self._changed.wait()

    # What the connection calls.

    def room(self, size: int) -> memoryview | None:
        """Where the next bytes of the request belong, at most `size`, if that is known. They are then to be fed."""
        return None if self._refusal is not None else self._deframer.room(size)

    def feed(self, data: Buffer, flow_controlled_size: int, *, has_ended: bool) -> None:
        self.has_ended = has_ended
        self._unacknowledged += flow_controlled_size
        if self._refusal is not None:
            self._acknowledge(self._unacknowledged)
            return
        size = len(data)
        self._held += size
        self._deframer.feed(data)
        if not self._memory.take(size):
            self._refusal = self._refused_memory(self._held)
            self.release(self._deframer.buffered)
            self._deframer = MessageDeframer(self._limits.max_message_size)
        if not self._changed:
            return
        if self._awaits_more and not (self._deframer.is_ready or has_ended or self._refusal is not None):
            self._acknowledge(self._unacknowledged)
            self._note_progress()
        elif has_ended or self.offer is None or not self._is_taken(self.offer):
            self._changed.wake_all()

    def _is_taken(self, offer: Callable[[memoryview], bool]) -> bool:
        message = self._deframer.whole()
        if message is None or self._refusal is not None:
            return False
        self._message_held = PREFIX_LENGTH + len(message)
        if not offer(message):
            return False
        self._deframer.drop()
        self._acknowledge(self._unacknowledged)
        return True

    def end(self) -> None:
        self.has_ended = True
        self._changed.wake_all()

    def drain(self) -> None:
        self.is_draining = True
        self._changed.wake_all()

    def terminate(self) -> None:
        """Nothing more can be sent: cancel the handler."""
        self.is_closed = True
        if self.scope is not None:
            self.scope.cancel()

    def close(self) -> None:
        """The call has ended: what it still holds is let go, and the peer may send as much to others."""
        self.release(self._held)
        self._acknowledge(self._unacknowledged)
        if self.on_close is not None:
            self.on_close()

    # Receiving.

    async def _next_frame(self) -> Frame | None:
        while True:
            found = self._found_frame()
            if found is not None:
                # What lies behind it waits for the next call, and holds the client back.
                self._acknowledge(self._unacknowledged - self._deframer.buffered)
                self._progress_by = 0.0
                return found
            self._acknowledge(self._unacknowledged)
            if self.has_ended:
                if self._deframer.buffered:
                    raise InvalidArgument(f"{self.method}: the request ends within a message")
                return None
            if self.is_draining and self._is_client_streaming and not self._deframer.buffered:
                raise Unavailable(SHUTTING_DOWN)
            self._awaits_more = self._deframer.buffered > 0
            await self._wait()
            self._awaits_more = False

    def _found_frame(self) -> Frame | None:
        if self._refusal is not None:
            raise self._refusal
        try:
            return self._deframer.next_frame()
        except PayloadTooLarge:
            self._output.count_refusal("max_message_size")
            raise

    async def _expect_end(self) -> None:
        while not self.has_ended and not self._deframer.buffered and self._refusal is None:
            await self._wait()
        if self._deframer.buffered or self._refusal is not None:
            raise InvalidArgument(f"{self.method} takes one request message, got more")

    async def _wait(self) -> None:
        """Until something comes. Only a client's stream may be silent, and only between its messages."""
        if self._is_client_streaming and not self._deframer.buffered:
            await self._changed.wait()
            return
        self._note_progress()
        with trio.move_on_at(self._progress_by) as waiting:
            await self._changed.wait()
        if waiting.cancelled_caught and trio.current_time() >= self._progress_by:
            self._output.count_refusal("receive_timeout")
            raise DeadlineExceeded(
                f"the request of {self.method} is not complete, and too little of it came for "
                f"{self._limits.receive_timeout:g} seconds"
            )

    def _note_progress(self) -> None:
        buffered = self._deframer.buffered
        if not self._progress_by or buffered - self._progress_from >= PROGRESS:
            self._progress_by = trio.current_time() + self._limits.receive_timeout
            self._progress_from = buffered

    def _acknowledge(self, size: int) -> None:
        if size > 0:
            self._unacknowledged -= size
            self._output.acknowledge(self.id, size)

    async def _decompress(self, payload: memoryview) -> bytes:
        """Its content counts from now on, not the compressed message."""
        if len(payload) <= _INFLATE_IN_THREAD_ABOVE:
            limit = self._inflated_limit()
            return self._held_message(self._inflated(payload, limit), limit)
        async with self._memory.inflating:
            limit = self._inflated_limit()
            # Abandoned with its call; the thread counts until it ends.
            inflated = await trio.to_thread.run_sync(
                self._inflated, payload, limit, limiter=self._memory.threads, abandon_on_cancel=True
            )
            return self._held_message(inflated, limit)

    def _inflated_limit(self) -> int:
        return min(self._limits.max_message_size, self._memory.left)

    def _inflated(self, payload: memoryview, limit: int) -> bytes | PayloadTooLarge:
        try:
            return decompress(payload, self._encoding, limit)
        except PayloadTooLarge as error:
            return error

    def _held_message(self, inflated: bytes | PayloadTooLarge, limit: int) -> bytes:
        self.release(self.take_message_memory())
        if isinstance(inflated, bytes):
            self._message_held = len(inflated)
            self._held += self._message_held
            self._memory.take(self._message_held)
            return inflated
        if limit < self._limits.max_message_size:
            raise self._refused_memory(self._held + limit)
        self._output.count_refusal("max_message_size")
        raise inflated

    def _refused_memory(self, size: int) -> ServerError:
        limit, error = self._memory.refusal(size)
        self._output.count_refusal(limit)
        return error

    # Sending.

    async def _compressed_frame(self, parts: Message) -> list[Buffer]:
        encoding, level = self._response_encoding, self._compression_level
        assert encoding is not None
        message = parts if isinstance(parts, bytes) else b"".join(parts)
        if len(message) <= _COMPRESS_IN_THREAD_ABOVE:
            compressed = compress(message, encoding, level)
        else:
            compressed = await trio.to_thread.run_sync(
                compress, message, encoding, level, limiter=self._memory.threads, abandon_on_cancel=True
            )
        return frame(message) if compressed is None else frame(compressed, is_compressed=True)

    def _response_headers(self) -> Sequence[Header]:
        if self._response_encoding is None:
            return RESPONSE_HEADERS
        return (*RESPONSE_HEADERS, (b"grpc-encoding", self._response_encoding.encode()))
