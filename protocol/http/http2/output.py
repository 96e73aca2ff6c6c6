"""Sends the responses of one HTTP/2 connection of the REST edge, on top of `protocol.http2.output`.

Flow: streams, exchange -> [output] -> http2.writer -> transport.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from h2.errors import ErrorCodes
from h2.exceptions import StreamClosedError

from protocol.http.exchange import ClientGone
from protocol.http.http2.head import ResponseBlocks
from protocol.http.reply import Headers, Reply
from protocol.http2.connection import ServerConnection
from protocol.http2.output import MAX_BACKLOG, FrameOutput
from protocol.limits.request_memory import RequestMemory
from protocol.messages import Buffer
from protocol.reactor.replies import Replies
from protocol.reactor.transport import Wire

# Responses without content; their length is that of what a GET would get (RFC 9110, 8.6).
_BODILESS = (204, 304)


class HttpOutput(FrameOutput):
    """The output of one connection. A task that waits to send on a stream that is reset meanwhile gets ClientGone."""

    __slots__ = ("_blocks", "before_end")

    def __init__(
        self,
        connection: ServerConnection,
        blocks: ResponseBlocks,
        wire: Wire,
        count_refusal: Callable[[str], None],
        memory: RequestMemory,
        *,
        send_timeout: float,
        connection_window: int,
    ) -> None:
        super().__init__(
            connection, wire, count_refusal, memory, send_timeout=send_timeout, connection_window=connection_window
        )
        self._blocks = blocks
        # Called with the stream of a response that is whole, before that is written: what it adds leaves with it.
        self.before_end: Callable[[int], None] | None = None

    # Responses that need no task.

    def send_reply_at_once(self, stream_id: int, reply: Reply, replies: Replies) -> bool:
        """Send a complete response; it is written with all replies of the same burst. False, and nothing is done, where
        it would have to wait for the client's window."""
        size = reply.length
        try:
            if size > self._h2.sendable(stream_id) or self._writer.backlog >= MAX_BACKLOG:
                return False
        except StreamClosedError:  # it is reset
            return True
        block = self._blocks.block(reply.status, reply.headers, size, reply.request_id)
        if size:
            self._h2.send_plain_response(stream_id, block, (reply.body, *reply.tail), size)
        else:
            self._h2.send_header_block(stream_id, block, end_stream=True)
        self.expect_updates(size)
        if self.before_end is not None:
            self.before_end(stream_id)
        self._write_soon(size, replies)
        return True

    def refuse(self, stream_id: int, reply: Reply, *, has_ended: bool, code: ErrorCodes) -> None:
        """Reply to a request that has no handler. Where the client's window has no room for the body, the stream is
        reset with the code instead."""
        size = reply.length
        with suppress(StreamClosedError):  # it was reset in the same burst
            if size > self._h2.sendable(stream_id):
                self._h2.reset_stream(stream_id, code)
                return
            block = self._blocks.block(reply.status, reply.headers, size, reply.request_id)
            self._h2.send_plain_response(stream_id, block, (reply.body, *reply.tail), size)
            self.expect_updates(size)
            if not has_ended:
                self._h2.reset_stream(stream_id, ErrorCodes.NO_ERROR)

    # Responses of a task.

    async def send_reply(self, stream_id: int, reply: Reply, *, is_head: bool) -> None:
        """Send a complete response. No checkpoint where nothing has to be waited for.

        Raises:
            Overloaded: it would have to wait, and there is no memory for that. Nothing has been sent.
        """
        size = reply.length
        parts = (reply.body, *reply.tail)
        held = 0
        try:
            has_body = not (is_head or not size or reply.status in _BODILESS)
            sendable = self._h2.sendable(stream_id)
            if has_body and (size > sendable or self._writer.backlog >= MAX_BACKLOG):
                self.answers.take(size)
                held = size
            if has_body:
                self.expect_updates(size)
            block = self._blocks.block(
                reply.status, reply.headers, size, reply.request_id
            )  # what is encoded has to be sent
            if not has_body:
                self._h2.send_header_block(stream_id, block, end_stream=True)
            elif not held:
                self._h2.send_plain_response(stream_id, block, parts, size)
            else:
                self._h2.send_header_block(stream_id, block)
                await self._send_in_frames(stream_id, parts, size, end_stream=True)
        except StreamClosedError:
            raise ClientGone from None
        finally:
            if held:
                self.answers.give(held)
        if self.before_end is not None:
            self.before_end(stream_id)
        self.write()

    def send_head(self, stream_id: int, status: int, headers: Headers) -> None:
        """Send the head of a response of unknown length, or of an informational one."""
        try:
            self._h2.sendable(stream_id)  # what is encoded has to be sent
            self._h2.send_header_block(stream_id, self._blocks.block(status, headers, None))
        except StreamClosedError:
            raise ClientGone from None
        self.write()

    async def send_piece(self, stream_id: int, parts: Sequence[Buffer], *, end_stream: bool = False) -> None:
        """A piece of a response of unknown length; waits while the client reads slowly."""
        size = sum(map(len, parts))
        if size:
            self.expect_updates(size)
        try:
            if size <= self._h2.sendable(stream_id) and self._writer.backlog < MAX_BACKLOG:
                self._h2.send_data(stream_id, parts, end_stream=end_stream)
            elif size:
                await self._send_in_frames(stream_id, parts, size, end_stream=end_stream)
            else:
                self._h2.send_data(stream_id, (), end_stream=end_stream)  # it takes nothing of any window
        except StreamClosedError:
            raise ClientGone from None
        if end_stream and self.before_end is not None:
            self.before_end(stream_id)
        self.write()

    def reset(self, stream_id: int, code: ErrorCodes) -> None:
        """Reset a stream; a no-op if it has ended."""
        with suppress(StreamClosedError):
            self._h2.reset_stream(stream_id, code)
        self.write()
