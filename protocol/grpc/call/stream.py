"""Server stream: one call as its handler sees it, with grpclib's stream interface, on Trio.

Flow: connection (events) -> [stream] -> handler -> [stream] -> connection. The generated service bases call
`recv_message` and `send_message`; the connection feeds bytes in and decides how the call ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import trio
from grpclib.exceptions import StreamTerminatedError
from grpclib.stream import StreamIterator

from protocol.access.restricted import HeaderLookup
from protocol.errors import DeadlineExceeded, InvalidArgument, Overloaded, Unavailable
from protocol.grpc.call.compression import choose_encoding, compress
from protocol.grpc.call.framing import Frame, Message, frame, whole_message
from protocol.grpc.call.headers import RESPONSE_HEADERS, Header
from protocol.grpc.call.incoming import Incoming
from protocol.grpc.call.output import Output
from protocol.grpc.call.receiving import MESSAGE_MEMORY, ReceiveMemory
from protocol.grpc.codec.messages import Codec
from protocol.grpc.settings import ConnectionLimits
from protocol.limits.answer_memory import AnswerMemory
from protocol.log.access_record import AccessRecord
from protocol.log.call_origin import CallOrigin
from protocol.log.failure_log import FailedRequest
from protocol.log.request_ids import RequestIds
from protocol.messages import Buffer
from protocol.quotas.accounts import Account
from protocol.reactor.replies import Replies
from protocol.sync.wakeup import WaitingTasks

SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."

_TRANSPORT_HEADERS = frozenset((b"te", b"content-type"))

# Compressing more would hold up every other call.
_COMPRESS_IN_THREAD_ABOVE = 65536


class Stream(StreamIterator[Any]):
    """A call in progress.

    Attributes:
        id: the HTTP/2 stream's.
        method: the path, `/package.Service/Method`.
        handle: what serves the call.
        incoming: the request's messages as they come.
        deadline: by the client, in seconds of Trio's clock.
        scope: what the handler runs in, from its start.
        has_sent_headers: the response has begun.
        is_closed: the client has given the call up, or is gone; nothing can be sent.
        offer: called with each request message that comes by itself and whole while the handler waits for one, and
            with the bytes that it counts for; whether it is taken, so that the handler does not get it. Who takes it
            has to `release` them.
        on_close: called when the call has ended, whether its handler has run or not.
        is_draining: the server stops; the handler should take no more requests.
        describe: what the log says of the inference request that the call serves, if that fails.
        noted_failure: what the handler has logged itself, before it raises that.
        origin: the call's id, for its trailers and for log lines.
        account: that of the client's key, if there are keys.
        record: what is measured of it for the access log.
        is_unlogged: it has no line there itself: each request in it has one.
        has_returned: its handler has, with `failure` if that is not None.
        more_trailers: what is told behind a response that has succeeded.
        trailers: the end of the response, where the handler has it from elsewhere.
        bytes_in, bytes_out: of its messages.
    """

    def __init__(
        self,
        output: Output,
        incoming: Incoming,
        codec: Codec,
        limits: ConnectionLimits,
        memory: ReceiveMemory,
        ids: RequestIds,
        key_name: Callable[[HeaderLookup], str] = lambda headers: "",
    ) -> None:
        head = incoming.head
        handler = head.handler
        assert handler is not None
        self.id = incoming.id
        self.method = head.method
        self.handle = handler.func
        self.incoming = incoming
        self.deadline = incoming.deadline
        self.scope: trio.CancelScope | None = None
        self.has_sent_headers = False
        self.is_closed = False
        self.is_draining = False
        self.describe: Callable[[], FailedRequest] = FailedRequest
        self.noted_failure: Exception | None = None
        self.record: AccessRecord | None = None
        self.is_unlogged = False
        self.has_returned = False
        self.failure: Exception | None = None
        self.more_trailers: Callable[[], Sequence[Header]] | None = None
        self.trailers: Sequence[Header] | None = None
        self.bytes_in = self.bytes_out = 0
        self.started_ns = time.monotonic_ns()
        # By the head alone: a cycle would keep the response until it is collected.
        self.origin = CallOrigin(ids, head.client, partial(key_name, partial(_value_in, head.headers)))
        self.account: Account | None = None
        self.offer: Callable[[bytes | memoryview, int], bool] | None = None
        self.on_close: Callable[[], None] | None = None
        self._output = output
        self._request_type = handler.request_type
        self._reply_type = handler.reply_type
        self._is_client_streaming = handler.cardinality.client_streaming
        self._is_server_streaming = handler.cardinality.server_streaming
        self._headers = head.headers
        self._codec = codec
        self._limits = limits
        self._response_encoding: str | None = None
        self._compression_level = 0
        self._memory = memory
        self._changed = WaitingTasks()
        self._awaits_more = False  # of a message that has begun, and nothing less than all of it

    # What the handler asks and calls.

    def header(self, name: str) -> str | None:
        """The first value of a header by its name in lower case; None where the call has none."""
        return _value_in(self._headers, name)

    @property
    def sent_headers(self) -> Sequence[Header]:
        """All headers of the call, as they came."""
        return self._headers

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
        incoming = self.incoming
        incoming.release_message()
        next_frame = await self._next_frame()
        if next_frame is None:
            if self._is_client_streaming:
                return None
            raise InvalidArgument(f"{self.method} takes one request message, got none")
        if not self._is_client_streaming:
            await self._expect_end()
        message: memoryview | bytes = next_frame.payload
        self.bytes_in += len(message)
        if next_frame.is_compressed:
            message = await incoming.decompress(next_frame.payload)
        return self._codec.decode(message, self._request_type)

    @property
    def peer(self) -> str:
        """The client's address."""
        return self._output.peer

    @property
    def answers(self) -> AnswerMemory:
        """What counts the whole responses that wait for the client, over all calls of its connection."""
        return self._output.answers

    def take_message_memory(self) -> int:
        """The bytes that the last message counts for. The caller has to `release` them when it has no more use for the
        message; else they are released with the next `recv_message`, or with the call."""
        return self.incoming.take_message_memory()

    def release(self, size: int) -> None:
        self.incoming.release(size)

    async def send_message(self, message: Any) -> None:
        """Send a response message, the headers before the first one. Waits while the client reads slowly. What a large
        one is made of must not change any more.

        Raises:
            grpclib.exceptions.StreamTerminatedError: the client has gone, and the call is being cancelled.
            Overloaded: the response of a unary call would have to wait, and there is no memory for that.
        """
        serialized = self._codec.encode(message, self._reply_type)
        parts = frame(serialized) if self._response_encoding is None else await self._compressed_frame(serialized)
        try:
            headers = () if self.has_sent_headers else self._response_headers()
            self.has_sent_headers = True
            await self._output.send_message(self.id, headers, parts, is_counted=not self._is_server_streaming)
            self.bytes_out += sum(map(len, parts))
        except StreamTerminatedError:
            self.terminate()
            raise
        except Overloaded:
            self.has_sent_headers = not headers
            raise
        if self._is_server_streaming:  # a unary response leaves with its trailers
            self._output.flush()

    def send_at_once(self, message: Message, replies: Replies) -> bool:
        """As `send_message` of an encoded message, but written with all replies of the same burst. False, and nothing
        is done, where that would have to wait, or the client has gone."""
        if self._response_encoding is not None or self.is_closed:
            return False
        headers = () if self.has_sent_headers else RESPONSE_HEADERS
        if not self._output.send_at_once(self.id, headers, frame(message), replies):
            return False
        self.has_sent_headers = True
        return True

    async def wait_draining(self) -> None:
        """Returns when the server stops."""
        while not self.is_draining:
            await self._changed.wait()

    # What the connection calls.

    def feed(self, data: Buffer, flow_controlled_size: int, *, has_ended: bool) -> None:
        incoming = self.incoming
        if self.offer is not None and self._is_taken(data, flow_controlled_size, has_ended=has_ended):
            return
        if not incoming.feed(data, flow_controlled_size, has_ended=has_ended) or not self._changed.waiting:
            return
        if self._awaits_more and not (incoming.is_ready or has_ended):
            incoming.acknowledge_in_burst()
            incoming.note_progress()
        else:
            self._changed.wake_all()

    def _is_taken(self, data: Buffer, flow_controlled_size: int, *, has_ended: bool) -> bool:
        """Whether what has arrived needs no waiting reader."""
        incoming = self.incoming
        if has_ended or incoming.deframer.buffered or incoming.refusal is not None or not self._changed.waiting:
            return False
        message = whole_message(data, self._limits.max_message_size)
        if message is None:
            return False
        size = MESSAGE_MEMORY + len(data)
        assert self.offer is not None
        if not self._memory.take(size) or not self.offer(message, size):
            self._memory.give(size)
            return False
        incoming.held += size
        incoming.unacknowledged += flow_controlled_size
        incoming.acknowledge_in_burst()
        return True

    def end(self) -> None:
        self.incoming.has_ended = True
        self._changed.wake_all()

    def drain(self) -> None:
        self.is_draining = True
        self._changed.wake_all()

    def terminate(self) -> None:
        """The connection is lost: cancel the handler."""
        self.is_closed = True
        if self.scope is not None:
            self.scope.cancel()

    def close(self) -> None:
        """The call has ended."""
        self.incoming.close()
        if self.on_close is not None:
            self.on_close()

    # Receiving.

    async def _next_frame(self) -> Frame | None:
        incoming = self.incoming
        while True:
            found = incoming.next_frame()
            if found is not None:
                return found
            incoming.acknowledge()
            if incoming.has_ended:
                if incoming.deframer.buffered:
                    raise InvalidArgument(f"{self.method}: the request ends within a message")
                return None
            if self.is_draining and self._is_client_streaming and not incoming.deframer.buffered:
                raise Unavailable(SHUTTING_DOWN)
            self._awaits_more = incoming.deframer.buffered > 0
            await self._wait()
            self._awaits_more = False

    async def _expect_end(self) -> None:
        incoming = self.incoming
        while not incoming.has_ended and not incoming.deframer.buffered and incoming.refusal is None:
            await self._wait()
        if incoming.deframer.buffered or incoming.refusal is not None:
            raise InvalidArgument(f"{self.method} takes one request message, got more")

    async def _wait(self) -> None:
        """Until something comes. Only a client's stream may be silent, and only between its messages."""
        incoming = self.incoming
        if self._is_client_streaming and not incoming.deframer.buffered:
            await self._changed.wait()
            return
        incoming.note_progress()
        with trio.move_on_at(incoming.progress_by) as waiting:
            await self._changed.wait()
        if waiting.cancelled_caught and trio.current_time() >= incoming.progress_by:
            self._output.count_refusal("receive_timeout")
            raise DeadlineExceeded(
                f"the request of {self.method} is not complete, and too little of it came for "
                f"{self._limits.receive_timeout:g} seconds"
            )

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


def _value_in(headers: Sequence[Header], name: str) -> str | None:
    wanted = name.encode("utf-8", "surrogatepass")
    for key, value in headers:
        if key == wanted:
            return value.decode("latin-1")
    return None
