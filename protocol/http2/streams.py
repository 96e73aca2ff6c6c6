"""Streams of an HTTP/2 connection: those that are open, and what is known of those that were. Source: RFC 9113, 5.1."""

from __future__ import annotations

import msgspec
from h2.exceptions import ProtocolError, StreamClosedError

from protocol.http2.flow_control import ReceiveWindow

# Streams that were reset, for which frames may still be on their way. Those forgotten are a connection error.
_REMEMBERED_RESETS = 4096


class Stream(msgspec.Struct, eq=False):
    window: int
    receive_window: ReceiveWindow | None = None  # as it was opened, before data has come that is not the last
    has_ended: bool = False  # the client's side
    is_answered: bool = False  # ours


class Streams(dict[int, Stream]):
    """The open streams by their ids; `highest_id` is that of the last one that a client has opened."""

    __slots__ = ("_resets", "highest_id")

    def __init__(self) -> None:
        self.highest_id = 0
        self._resets: dict[int, None] = {}

    def unanswered(self, stream_id: int) -> Stream:
        """The stream, on which we may still send. Raises StreamClosedError."""
        stream = self.get(stream_id)
        if stream is None or stream.is_answered:
            raise StreamClosedError(stream_id)
        return stream

    def note_answered(self, stream: Stream, stream_id: int) -> None:
        """Our direction of the stream is closed."""
        stream.is_answered = True
        if stream.has_ended:
            del self[stream_id]

    def note_reset(self, stream_id: int) -> bool:
        """False where the stream is not open."""
        if self.pop(stream_id, None) is None:
            return False
        self._resets[stream_id] = None
        if len(self._resets) > _REMEMBERED_RESETS:
            del self._resets[next(iter(self._resets))]
        return True

    def check_opened(self, stream_id: int) -> None:
        """A frame for a closed stream may arrive late; one for a stream that was never opened is an error."""
        if not stream_id & 1 or stream_id > self.highest_id:
            raise ProtocolError(f"Stream {stream_id} is idle")

    def check_gone(self, stream_id: int) -> None:
        """After END_STREAM of the client no frame may follow; after a reset it may."""
        self.check_opened(stream_id)
        if stream_id not in self._resets:
            raise StreamClosedError(stream_id)
