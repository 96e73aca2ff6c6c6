"""Sends the responses and trailers of one gRPC connection, on top of `protocol.http2.output`.

Flow: stream, connection -> [outgoing] -> http2.writer -> socket.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from grpclib.exceptions import StreamTerminatedError
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError, StreamClosedError

from protocol.grpc.call.framing import PREFIX_LENGTH
from protocol.grpc.call.headers import OK_TRAILERS, RESPONSE_HEADERS, Header
from protocol.http2.connection import ServerConnection
from protocol.http2.output import BYTES_PER_UPDATE, MAX_BACKLOG, UPDATES_PER_MESSAGE, FrameOutput
from protocol.limits.counter import LimitCounter
from protocol.limits.request_memory import RequestMemory
from protocol.messages import Buffer
from protocol.reactor.replies import Replies
from protocol.reactor.transport import Wire


class Outgoing(FrameOutput):
    """Implements `output.Output`, and sends what the connection itself has to say.

    Attributes:
        has_sent_data: data or headers have left since somebody last looked.
    """

    __slots__ = ("has_sent_data",)

    def __init__(
        self,
        connection: ServerConnection,
        wire: Wire,
        counts: LimitCounter,
        memory: RequestMemory,
        *,
        send_timeout: float,
        connection_window: int,
    ) -> None:
        super().__init__(
            connection,
            wire,
            partial(counts.count, "grpc"),
            memory,
            send_timeout=send_timeout,
            connection_window=connection_window,
        )
        self.has_sent_data = False

    # Of streams.

    async def send_message(
        self, stream_id: int, headers: Sequence[Header], parts: Sequence[Buffer], *, is_counted: bool
    ) -> None:
        """No checkpoint where nothing has to be waited for. A stream whose window stays shut is reset."""
        size = sum(map(len, parts))
        held = 0
        try:
            is_sendable = size <= self._h2.sendable(stream_id) and self._writer.backlog < MAX_BACKLOG
            if is_counted and not is_sendable:
                self.answers.take(size)
                held = size
            self.has_sent_data = True
            self.expect_updates(size)
            if headers:
                self._h2.send_headers(stream_id, headers)
            if is_sendable:
                self._h2.send_data(stream_id, parts)
            else:
                await self._send_in_frames(stream_id, parts, size)
        except ProtocolError as error:
            raise StreamTerminatedError(str(error)) from None
        finally:
            if held:
                self.answers.give(held)

    def send_at_once(
        self, stream_id: int, headers: Sequence[Header], parts: Sequence[Buffer], replies: Replies
    ) -> bool:
        """Send data, after headers if there are any; written with all replies of the same burst. False, and nothing is
        done, where it would have to wait for the client, or the client has gone."""
        size = sum(map(len, parts))
        try:
            if self._writer.backlog >= MAX_BACKLOG or not self._h2.send_data_at_once(stream_id, headers, parts, size):
                return False
        except StreamClosedError:  # it is reset
            return False
        self.has_sent_data = True
        self.window_updates += UPDATES_PER_MESSAGE + size // BYTES_PER_UPDATE
        self._write_soon(size, replies)
        return True

    def send_response(self, stream_id: int, message: Sequence[Buffer], replies: Replies, request_id: bytes) -> bool:
        """Send a complete successful response, of one message, to a call whose client has half-closed; written with all
        replies of the same burst. False, and nothing is done, where it would have to wait for the client."""
        size = len(message[0]) if len(message) == 1 else sum(map(len, message))
        parts = (b"\0" + size.to_bytes(4, "big"), *message)
        size += PREFIX_LENGTH
        try:
            if self._writer.backlog >= MAX_BACKLOG or not self._h2.send_response(
                stream_id, RESPONSE_HEADERS, parts, size, OK_TRAILERS, request_id
            ):
                return False
        except StreamClosedError:  # it is reset
            return True
        self.has_sent_data = True
        self.window_updates += UPDATES_PER_MESSAGE + size // BYTES_PER_UPDATE  # as `expect_updates`, without its calls
        self._write_soon(size, replies)
        return True

    def _note_data_sent(self) -> None:
        self.has_sent_data = True

    def fail_stream(self, stream_id: int, ending: Sequence[Header], request_id: bytes) -> None:
        """End a stream after a defect: with the trailers, if nothing was sent yet, else by a reset."""
        try:
            self.end_stream(stream_id, ending, peer_has_ended=False, request_id=request_id)
        except ProtocolError:
            with suppress(ProtocolError):
                self._h2.reset_stream(stream_id, ErrorCodes.INTERNAL_ERROR)
        self.flush()

    def end_stream(self, stream_id: int, headers: Sequence[Header], *, peer_has_ended: bool, request_id: bytes) -> None:
        """Send the trailers, with the request's id; whoever is still sending is told to stop (RST_STREAM, NO_ERROR)."""
        self.has_sent_data = True
        try:
            self._h2.send_headers(stream_id, headers, end_stream=True, request_id=request_id)
            if not peer_has_ended:
                self._h2.reset_stream(stream_id, ErrorCodes.NO_ERROR)
        except StreamClosedError:  # it is reset
            pass
