"""Measured exchange: an exchange that notes how it is answered, for the access log."""

from __future__ import annotations

from protocol.http.body import BodyLimit
from protocol.http.exchange import BodyStream, Exchange
from protocol.http.reply import Headers, Reply
from protocol.http.wrapped import WrappedExchange
from protocol.limits.request_memory import RequestShare
from protocol.messages import Buffer


class MeasuredExchange(WrappedExchange):
    """Passes on to another exchange.

    Attributes:
        status: of the response; 0 where none has begun.
        bytes_out: of the content that was sent.
        is_complete: the whole response was sent.
    """

    __slots__ = ("_read", "_stream", "bytes_out", "is_complete", "status")

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self.status = 0
        self._read = 0
        self._stream: BodyStream | None = None
        self.bytes_out = 0
        self.is_complete = False

    @property
    def bytes_in(self) -> int:
        """Of the content, as it was read."""
        return self._read if self._stream is None else self._stream.received

    async def read_body(self, limit: BodyLimit, share: RequestShare, *, pause_seconds: float) -> Buffer:
        body = await super().read_body(limit, share, pause_seconds=pause_seconds)
        self._read = len(body)
        return body

    def stream_body(self, limit: BodyLimit, *, pause_seconds: float) -> BodyStream:
        self._stream = super().stream_body(limit, pause_seconds=pause_seconds)
        return self._stream

    async def reply(self, reply: Reply) -> None:
        await super().reply(reply)
        self._note(reply)

    async def reply_early(self, reply: Reply, *, linger: float) -> None:
        self._note(reply)
        await super().reply_early(reply, linger=linger)

    async def start(self, status: int, headers: Headers) -> None:
        self.status = status
        await super().start(status, headers)

    async def send(self, data: bytes) -> None:
        await super().send(data)
        self.bytes_out += len(data)

    def send_at_once(self, data: bytes) -> bool:
        if not super().send_at_once(data):
            return False
        self.bytes_out += len(data)
        return True

    async def end(self) -> None:
        await super().end()
        self.is_complete = True

    def _note(self, reply: Reply) -> None:
        self.status = reply.status
        self.bytes_out = 0 if self.method == "HEAD" else reply.length
        self.is_complete = True
