"""HTTP/2 connection state machine of the server: interprets a client's frames, and answers those that are no request's.
No I/O.

A GOAWAY, in either direction, is not the end of the connection: no more streams are opened, and open ones finish.
Streams beyond `max_concurrent_streams` are the owner's to refuse, one by one. A stream error resets its stream; a
connection error makes a GOAWAY, which is then in `output`, and raises. Source: RFC 9113.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from h2.errors import ErrorCodes
from h2.exceptions import (
    DenialOfServiceError,
    FlowControlError,
    FrameDataMissingError,
    ProtocolError,
)
from h2.settings import SettingCodes

from protocol.http2 import events
from protocol.http2.events import Event
from protocol.http2.flow_control import LARGEST_WINDOW, ReceiveWindow, widened
from protocol.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    IS_PADDED,
    MAX_FRAME_SIZE,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    FrameReader,
    check_dependency,
    frame,
    read_number,
    without_padding,
)
from protocol.http2.request_headers import Headers, MalformedHeadersError, RequestHeaders
from protocol.http2.response_headers import ResponseHeaders
from protocol.http2.sender import FrameSender
from protocol.http2.streams import Stream
from protocol.messages import Buffer

_MAX_CONTINUATIONS = 64
# A header block that is not decoded yet; Huffman's code makes it longer at worst by so much.
_MAX_BLOCK_PER_HEADER_SIZE = 4


class _OpenBlock:
    """A header block whose END_HEADERS has not arrived."""

    __slots__ = ("flags", "parts", "size", "stream_id")

    def __init__(self, stream_id: int, flags: int, start: bytes) -> None:
        self.stream_id = stream_id
        self.flags = flags
        self.parts = [start]
        self.size = len(start)


def _as_it_is(headers: Headers) -> Any:
    return headers


class ServerConnection(FrameSender):
    """One connection. `stream_window` and `connection_window` are how many unread bytes a client may send.

    `interpret` is called with a request's headers, and returns the event's `request`; it is called once for equal
    header blocks. `refuse` is called in its place with what is wrong with malformed headers; without one the stream of
    such a request is reset. Headers of more than twice `max_header_size` end the connection, since they cannot be
    decoded.

    Attributes:
        has_frames_left: `receive_data` has yet to give the events of some that have come.
    """

    __slots__ = (
        "_block",
        "_events",
        "_max_block_size",
        "_stream_window",
        "_updated",
        "frames",
        "has_frames_left",
        "request_headers",
    )

    def __init__(
        self,
        *,
        max_concurrent_streams: int,
        stream_window: int,
        connection_window: int,
        max_header_size: int,
        interpret: Callable[[Headers], Any] = _as_it_is,
        refuse: Callable[[str], Any] | None = None,
        response_headers: ResponseHeaders | None = None,
    ) -> None:
        own_settings = {
            SettingCodes.MAX_CONCURRENT_STREAMS: max_concurrent_streams,
            SettingCodes.MAX_HEADER_LIST_SIZE: max_header_size,
            SettingCodes.INITIAL_WINDOW_SIZE: stream_window,
            SettingCodes.MAX_FRAME_SIZE: MAX_FRAME_SIZE,
        }
        super().__init__(own_settings, connection_window, response_headers or ResponseHeaders())
        self.request_headers = RequestHeaders(interpret, 2 * max_header_size, refuse)
        self.frames = FrameReader(MAX_FRAME_SIZE)
        self._block: _OpenBlock | None = None
        self._max_block_size = _MAX_BLOCK_PER_HEADER_SIZE * max_header_size
        self._stream_window = stream_window
        self._events: list[Event] = []
        self._updated: list[int] = []  # streams with a new window, since the last event about that
        self.has_frames_left = False

    def receive_data(self, data: Buffer | None, most: int = sys.maxsize) -> list[Event]:
        """Parse received bytes to events, those of so many frames at most. Where it `has_frames_left` then,
        nothing more may be received before None, in place of bytes, has given them. The data of a large DATA frame is
        not copied.

        Raises:
            ProtocolError: the client breaks the protocol; a GOAWAY tells it so.
        """
        happened = self._events = []
        try:
            reader = self.frames
            frames, failure = reader.read(data, most)
            self.has_frames_left = reader.has_more
            takers = _ON_FRAME
            for kind, flags, stream_id, payload in frames:
                if self._block is not None:
                    self._on_continuation(kind, flags, stream_id, payload)
                    continue
                on_frame = takers.get(kind)
                if on_frame is None:
                    happened.append(events.IgnoredFrame(kind))
                else:
                    on_frame(self, flags, stream_id, payload)
            if failure is not None:
                raise failure
        except ProtocolError as error:
            self.close_connection(error.error_code)
            raise
        if self._updated:
            happened.append(events.WindowUpdated(self._updated))
            self._updated = []
        return happened

    def _on_data(self, flags: int, stream_id: int, payload: Buffer) -> None:
        size = len(payload)
        data = without_padding(payload) if flags & IS_PADDED else payload
        self._receive_window.consume(size)
        stream = self._streams.get(stream_id)
        if stream is None or stream.has_ended:
            if stream is not None:
                self._reset(stream_id, ErrorCodes.STREAM_CLOSED)
            else:
                self._streams.check_gone(stream_id)
            self.give_back(size)
            return
        has_ended = flags & END_STREAM != 0
        window = stream.receive_window
        if window is None and not (has_ended and size <= self._stream_window):
            window = stream.receive_window = ReceiveWindow(self._stream_window)
        if window is not None:
            window.consume(size)
        happened = self._events
        if has_ended:
            stream.has_ended = True
            if stream.is_answered:
                del self._streams[stream_id]
            last = happened[-1] if happened else None
            if type(last) is events.RequestReceived and last.stream_id == stream_id:
                last.data, last.flow_controlled_length, last.stream_ended = data, size, True
                return
        happened.append(events.DataReceived(stream_id, data, size, has_ended))

    def _on_headers(self, flags: int, stream_id: int, payload: Buffer) -> None:
        if not stream_id:
            raise ProtocolError("HEADERS on stream 0")
        block = bytes(without_padding(payload) if flags & IS_PADDED else payload)
        if flags & HAS_PRIORITY:
            check_dependency(stream_id, block)
            block = block[5:]
        if flags & END_HEADERS:
            self._on_header_block(stream_id, flags, block)
        else:
            self._block = _OpenBlock(stream_id, flags, block)

    def _on_continuation(self, kind: int, flags: int, stream_id: int, payload: Buffer) -> None:
        block = self._block
        assert block is not None
        if kind != CONTINUATION or stream_id != block.stream_id:
            raise ProtocolError("Invalid frame during header block.")
        block.parts.append(bytes(payload))
        block.size += len(payload)
        if len(block.parts) > _MAX_CONTINUATIONS:
            raise ProtocolError("Too many continuation frames received.")
        if block.size > self._max_block_size:
            raise DenialOfServiceError(f"Oversized header block: more than {self._max_block_size} bytes")
        if flags & END_HEADERS:
            self._block = None
            self._on_header_block(stream_id, block.flags, b"".join(block.parts))

    def _on_header_block(self, stream_id: int, flags: int, block: bytes) -> None:
        streams = self._streams
        if stream_id > streams.highest_id:
            if not stream_id & 1:
                raise ProtocolError(f"Stream {stream_id} is not a client's")
            request = self.request_headers.kept.get(block)
            is_malformed = False
            if request is None:
                try:
                    request = self.request_headers.request(block)
                except MalformedHeadersError:
                    is_malformed = True
            streams.highest_id = stream_id
            has_ended = flags & END_STREAM != 0
            streams[stream_id] = Stream(self.client_settings.initial_window_size, None, has_ended)
            if is_malformed:
                self._reset(stream_id, ErrorCodes.PROTOCOL_ERROR)
                return
            self._events.append(events.RequestReceived(stream_id, request, has_ended))
        elif not self._takes_trailers(stream_id, flags, block):
            return
        if flags & HAS_PRIORITY:
            self._events.append(events.IgnoredFrame(PRIORITY))

    def _takes_trailers(self, stream_id: int, flags: int, block: bytes) -> bool:
        """Handle the trailers of a request; False where the stream has ended, or is reset for them."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.has_ended:
            self.request_headers.skip(block)
            if stream is not None:
                self._reset(stream_id, ErrorCodes.STREAM_CLOSED)
            else:
                self._streams.check_gone(stream_id)
            return False
        try:
            self.request_headers.trailers(block)
            if not flags & END_STREAM:
                raise MalformedHeadersError("trailers that do not end the stream")
        except MalformedHeadersError:
            self._reset(stream_id, ErrorCodes.PROTOCOL_ERROR)
            return False
        stream.has_ended = True
        if stream.is_answered:
            del self._streams[stream_id]
        self._events.append(events.TrailersReceived(stream_id))
        return True

    def _on_window_update(self, flags: int, stream_id: int, payload: Buffer) -> None:
        increment = (int.from_bytes(payload, "big") if len(payload) == 4 else read_number(payload)) & 0x7FFFFFFF
        if not stream_id:
            if not increment:
                raise ProtocolError("WINDOW_UPDATE by 0")
            self._window += increment
            if self._window > LARGEST_WINDOW:
                raise FlowControlError(f"May not increment flow control window past {LARGEST_WINDOW}")
        else:
            stream = self._streams.get(stream_id)
            if stream is None:
                self._streams.check_opened(stream_id)
                self._updated.append(stream_id)  # a flood of such frames is one as well
                return
            if not increment:
                self._reset(stream_id, ErrorCodes.PROTOCOL_ERROR)
                return
            stream.window += increment
            if stream.window > LARGEST_WINDOW:
                self._reset(stream_id, ErrorCodes.FLOW_CONTROL_ERROR)
                return
        self._updated.append(stream_id)

    def _on_ping(self, flags: int, stream_id: int, payload: Buffer) -> None:
        if stream_id:
            raise ProtocolError("PING on a stream")
        data = bytes(payload)
        if len(data) != 8:
            raise FrameDataMissingError(f"PING of {len(data)} bytes, expected 8")
        if flags & ACK:
            self._events.append(events.PingAckReceived(data))
        else:
            self.output.append(frame(PING, ACK, 0, data))
            self._events.append(events.PingReceived())

    def _on_rst_stream(self, flags: int, stream_id: int, payload: Buffer) -> None:
        read_number(payload)
        self._streams.check_opened(stream_id)
        if self._streams.note_reset(stream_id):
            self._events.append(events.StreamReset(stream_id))

    def _on_settings(self, flags: int, stream_id: int, payload: Buffer) -> None:
        if stream_id:
            raise ProtocolError("SETTINGS on a stream")
        if flags & ACK:
            if payload:
                raise FrameDataMissingError(f"SETTINGS acknowledged with {len(payload)} bytes, expected none")
            self._events.append(events.IgnoredFrame(SETTINGS))
            return
        settings = self.client_settings
        table_size, window = settings.header_table_size, settings.initial_window_size
        settings.update(payload)
        if settings.initial_window_size != window:
            for stream in self._streams.values():
                stream.window = widened(stream.window, settings.initial_window_size - window)
        if settings.header_table_size != table_size:
            self.response_headers.set_table_size(settings.header_table_size)
        self.output.append(frame(SETTINGS, ACK, 0))
        self._events.append(events.RemoteSettingsChanged())

    def _on_priority(self, flags: int, stream_id: int, payload: Buffer) -> None:
        if not stream_id:
            raise ProtocolError("PRIORITY on stream 0")
        if len(payload) != 5:
            raise FrameDataMissingError(f"PRIORITY of {len(payload)} bytes, expected 5")
        check_dependency(stream_id, payload)
        self._events.append(events.IgnoredFrame(PRIORITY))

    def _on_goaway(self, flags: int, stream_id: int, payload: Buffer) -> None:
        if stream_id:
            raise ProtocolError("GOAWAY on a stream")
        if len(payload) < 8:
            raise FrameDataMissingError(f"GOAWAY of {len(payload)} bytes, expected 8")
        self._events.append(events.IgnoredFrame(GOAWAY))

    def _on_misplaced(self, flags: int, stream_id: int, payload: Buffer) -> None:
        raise ProtocolError("PUSH_PROMISE by a client, or CONTINUATION of nothing")

    def _reset(self, stream_id: int, error: ErrorCodes) -> None:
        """Reset an open stream for an error of the client."""
        self.reset_stream(stream_id, error)
        self._events.append(events.StreamReset(stream_id))


# One for all connections, those most frequent first.
_ON_FRAME: dict[int, Callable[[ServerConnection, int, int, Buffer], None]] = {
    DATA: ServerConnection._on_data,
    HEADERS: ServerConnection._on_headers,
    WINDOW_UPDATE: ServerConnection._on_window_update,
    PING: ServerConnection._on_ping,
    RST_STREAM: ServerConnection._on_rst_stream,
    SETTINGS: ServerConnection._on_settings,
    PRIORITY: ServerConnection._on_priority,
    GOAWAY: ServerConnection._on_goaway,
    PUSH_PROMISE: ServerConnection._on_misplaced,
    CONTINUATION: ServerConnection._on_misplaced,
}
