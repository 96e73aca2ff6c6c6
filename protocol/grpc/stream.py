"""One call, as its handler sees it: grpclib's server stream, on Trio.

Flow: connection (h2 events) -> [stream] -> handler -> [stream] -> connection. The generated service bases call
`recv_message` and `send_message`; the connection feeds bytes in and decides how the call ends.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Protocol

import trio
from grpclib.const import Handler
from grpclib.metadata import decode_metadata
from grpclib.stream import StreamIterator

from protocol.errors import DeadlineExceeded, InvalidArgument, Unavailable
from protocol.grpc.codec import Codec
from protocol.grpc.framing import Frame, MessageDeframer, decompress, frame
from protocol.grpc.headers import RESPONSE_HEADERS, Header

SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."

# Inflating more than so many compressed bytes would hold up every other call.
_INFLATE_IN_THREAD_ABOVE = 4096


class Output(Protocol):
    """What a stream asks of its connection."""

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Let the peer send `size` bytes more."""

    def send_headers(self, stream_id: int, headers: Sequence[Header]) -> None: ...

    async def send_data(self, stream_id: int, data: bytes) -> None:
        """Returns when all of it is on its way to the writer; waits while the peer reads slowly."""

    def flush(self) -> None: ...


class Stream(StreamIterator[Any]):
    """A call in progress.

    Attributes:
        id: the HTTP/2 stream's.
        method: the path, `/package.Service/Method`.
        scope: what the handler runs in; its deadline is the call's.
        has_ended: the client has sent all that it will send.
        has_sent_headers: the response has begun.
        is_closed: the client has given the call up, or is gone; nothing can be sent.
        is_draining: the server stops; the handler should take no more requests.
    """

    def __init__(
        self,
        output: Output,
        stream_id: int,
        method: str,
        handler: Handler,
        headers: Sequence[Header],
        codec: Codec,
        *,
        deadline: float,
        encoding: str,
        max_message_size: int,
        body_timeout: float,
    ) -> None:
        self.id = stream_id
        self.method = method
        self.scope = trio.CancelScope(deadline=deadline)
        self.has_ended = False
        self.has_sent_headers = False
        self.is_closed = False
        self.is_draining = False
        self._output = output
        self._request_type = handler.request_type
        self._reply_type = handler.reply_type
        self._is_client_streaming = handler.cardinality.client_streaming
        self._is_server_streaming = handler.cardinality.server_streaming
        self._headers = headers
        self._codec = codec
        self._encoding = encoding
        self._max_message_size = max_message_size
        self._body_timeout = body_timeout
        self._deframer = MessageDeframer(max_message_size)
        self._unacknowledged = 0  # bytes, with padding
        self._changed = trio.lowlevel.ParkingLot()

    @functools.cached_property
    def metadata(self) -> Any:
        """The client's metadata as a multidict, without what HTTP/2 and gRPC use themselves.

        Raises:
            InvalidArgument: a binary value is no base64, or a value is no ASCII.
        """
        try:
            return decode_metadata([(name.decode("ascii"), value.decode("ascii")) for name, value in self._headers])
        except ValueError as error:
            raise InvalidArgument(f"the metadata could not be read: {error}") from None

    # What the handler calls.

    async def recv_message(self) -> Any:
        """The next request message, None after the last one of a client's stream.

        Raises:
            InvalidArgument: no message where there must be one, more than one, one that is cut off or broken.
            PayloadTooLarge: a message over the limit; it is refused when its length is known.
            DeadlineExceeded: the rest of a message does not come.
            Unavailable: the server stops, and nothing more has come on this client's stream.
        """
        next_frame = await self._next_frame()
        if next_frame is None:
            if self._is_client_streaming:
                return None
            raise InvalidArgument(f"{self.method} takes one request message, got none")
        if not self._is_client_streaming:
            await self._expect_end()
        message: memoryview | bytes = next_frame.payload
        if next_frame.is_compressed:
            message = await self._decompress(next_frame.payload)
        return self._codec.decode(message, self._request_type)

    async def send_message(self, message: Any) -> None:
        """Send a response message, the headers before the first one. Waits while the client reads slowly.

        Raises:
            grpclib.exceptions.StreamTerminatedError: the client has gone.
        """
        serialized = self._codec.encode(message, self._reply_type)
        if not self.has_sent_headers:
            self.has_sent_headers = True
            self._output.send_headers(self.id, RESPONSE_HEADERS)
        await self._output.send_data(self.id, frame(serialized))
        if self._is_server_streaming:  # a unary response leaves with its trailers
            self._output.flush()

    # What the connection calls.

    def feed(self, data: bytes, flow_controlled_size: int) -> None:
        self._deframer.feed(data)
        self._unacknowledged += flow_controlled_size
        self._changed.unpark_all()

    def end(self) -> None:
        self.has_ended = True
        self._changed.unpark_all()

    def drain(self) -> None:
        self.is_draining = True
        self._changed.unpark_all()

    def terminate(self) -> None:
        """Nothing more can be sent: cancel the handler."""
        self.is_closed = True
        self.scope.cancel()

    def take_unacknowledged(self) -> int:
        size, self._unacknowledged = self._unacknowledged, 0
        return size

    async def _next_frame(self) -> Frame | None:
        while True:
            found = self._deframer.next_frame()
            if found is not None:
                # What lies behind it waits for the next call, and holds the client back.
                self._acknowledge(self._unacknowledged - self._deframer.buffered)
                return found
            self._acknowledge(self._unacknowledged)
            if self.has_ended:
                if self._deframer.buffered:
                    raise InvalidArgument(f"{self.method}: the request ends within a message")
                return None
            if self.is_draining and self._is_client_streaming and not self._deframer.buffered:
                raise Unavailable(SHUTTING_DOWN)
            await self._wait()

    async def _expect_end(self) -> None:
        while not self.has_ended and not self._deframer.buffered:
            await self._wait()
        if self._deframer.buffered:
            raise InvalidArgument(f"{self.method} takes one request message, got more")

    async def _wait(self) -> None:
        """Until something comes. Only a client's stream may be silent, and only between its messages."""
        may_be_silent = self._is_client_streaming and not self._deframer.buffered
        with trio.move_on_after(math.inf if may_be_silent else self._body_timeout) as waiting:
            await self._changed.park()
        if waiting.cancelled_caught:
            raise DeadlineExceeded(
                f"the request of {self.method} is not complete, and nothing came for {self._body_timeout:g} seconds"
            )

    def _acknowledge(self, size: int) -> None:
        if size > 0:
            self._unacknowledged -= size
            self._output.acknowledge(self.id, size)

    async def _decompress(self, payload: memoryview) -> bytes:
        if len(payload) <= _INFLATE_IN_THREAD_ABOVE:
            return decompress(payload, self._encoding, self._max_message_size)
        return await trio.to_thread.run_sync(
            decompress, payload, self._encoding, self._max_message_size, abandon_on_cancel=True
        )
