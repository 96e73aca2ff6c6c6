"""HTTP/2 connection state machine of the server: interprets a client's frames and makes the frames that answer them. No
I/O.

A GOAWAY, in either direction, is not the end of the connection: no more streams are opened, and open ones finish.
Streams beyond `max_concurrent_streams` are the owner's to refuse, one by one. A stream error resets its stream; a
connection error makes a GOAWAY, which is then in `output`, and raises. Source: RFC 9113.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from h2.errors import ErrorCodes
from h2.exceptions import (
    DenialOfServiceError,
    FlowControlError,
    FrameDataMissingError,
    ProtocolError,
    StreamClosedError,
)
from h2.settings import SettingCodes

from protocol.http2 import events
from protocol.http2.client_settings import ClientSettings, pack_settings
from protocol.http2.events import Event
from protocol.http2.flow_control import DEFAULT_WINDOW, LARGEST_WINDOW, ReceiveWindow, widened
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
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    FrameReader,
    frame,
    frame_header,
    pack_header,
)
from protocol.http2.request_headers import Headers, MalformedHeadersError, RequestHeaders
from protocol.http2.response_headers import ResponseBlock, ResponseHeaders
from protocol.messages import Buffer

# Of DATA, either way: fewer and larger frames cost less. Those of a large message are given in pieces as they come.
MAX_FRAME_SIZE = 1 << 20

# To join less than this costs less than to send parts from where they are.
_JOINED_SIZE = 65536

# Streams that were reset, for which frames may still be on their way. Those forgotten are a connection error.
_REMEMBERED_RESETS = 4096
_MAX_CONTINUATIONS = 64
# A header block that is not decoded yet; Huffman's code makes it longer at worst by so much.
_MAX_BLOCK_PER_HEADER_SIZE = 4


class _Stream(msgspec.Struct, eq=False):
    window: int
    receive_window: ReceiveWindow | None = None  # as it was opened, before data has come that is not the last
    has_ended: bool = False  # the client's side
    is_answered: bool = False  # ours


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


class ServerConnection:
    """One connection. `stream_window` and `connection_window` are how many unread bytes a client may send.

    `interpret` is called with a request's headers, and returns the event's `request`; it is called once for equal
    header blocks. `refuse` is called in its place with what is wrong with malformed headers; without one the stream of
    such a request is reset. Headers of more than twice `max_header_size` end the connection, since they cannot be
    decoded.
    """

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
        self.client_settings = ClientSettings()
        self.request_headers = RequestHeaders(interpret, 2 * max_header_size, refuse)
        self.response_headers = response_headers or ResponseHeaders()
        self._own_settings = {
            SettingCodes.MAX_CONCURRENT_STREAMS: max_concurrent_streams,
            SettingCodes.MAX_HEADER_LIST_SIZE: max_header_size,
            SettingCodes.INITIAL_WINDOW_SIZE: stream_window,
            SettingCodes.MAX_FRAME_SIZE: MAX_FRAME_SIZE,
        }
        self.frames = FrameReader(MAX_FRAME_SIZE)
        self._streams: dict[int, _Stream] = {}
        self._highest_stream_id = 0
        self._resets: dict[int, None] = {}
        self._block: _OpenBlock | None = None
        self._max_block_size = _MAX_BLOCK_PER_HEADER_SIZE * max_header_size
        self._window = DEFAULT_WINDOW
        self._stream_window = stream_window
        self._receive_window = ReceiveWindow(max(connection_window, DEFAULT_WINDOW))
        self.output: list[Buffer] = []  # frames that have been made
        self._events: list[Event] = []
        self._updated: list[int] = []  # streams with a new window, since the last event about that
        # Those most frequent first.
        self._on_frame: dict[int, Callable[[int, int, Buffer], None]] = {
            DATA: self._on_data,
            HEADERS: self._on_headers,
            WINDOW_UPDATE: self._on_window_update,
            PING: self._on_ping,
            RST_STREAM: self._on_rst_stream,
            SETTINGS: self._on_settings,
            PRIORITY: self._on_priority,
            GOAWAY: self._on_goaway,
            PUSH_PROMISE: self._on_misplaced,
            CONTINUATION: self._on_misplaced,
        }

    def initiate_connection(self) -> None:
        self.output.append(frame(SETTINGS, 0, 0, pack_settings(self._own_settings)))
        increment = self._receive_window.size - DEFAULT_WINDOW
        if increment:
            self.output.append(frame(WINDOW_UPDATE, 0, 0, increment.to_bytes(4, "big")))

    # What comes.

    def receive_data(self, data: Buffer) -> list[Event]:
        """Parse received bytes to events. The data of a large DATA frame is not copied.

        Raises:
            ProtocolError: the client breaks the protocol; a GOAWAY tells it so.
        """
        happened = self._events = []
        try:
            frames, failure = self.frames.read(data)
            takers = self._on_frame
            for kind, flags, stream_id, payload in frames:
                if self._block is not None:
                    self._on_continuation(kind, flags, stream_id, payload)
                    continue
                on_frame = takers.get(kind)
                if on_frame is None:
                    happened.append(events.IgnoredFrame(kind))
                else:
                    on_frame(flags, stream_id, payload)
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
        data = _without_padding(payload) if flags & IS_PADDED else payload
        self._receive_window.consume(size)
        stream = self._streams.get(stream_id)
        if stream is None or stream.has_ended:
            if stream is not None:
                self._reset(stream_id, ErrorCodes.STREAM_CLOSED)
            else:
                self._check_gone(stream_id)
            self.give_back(size)
            return
        has_ended = bool(flags & END_STREAM)
        if stream.receive_window is None and not (has_ended and size <= self._stream_window):
            stream.receive_window = ReceiveWindow(self._stream_window)
        if stream.receive_window is not None:
            stream.receive_window.consume(size)
        if has_ended:
            stream.has_ended = True
            if stream.is_answered:
                del self._streams[stream_id]
            last = self._events[-1] if self._events else None
            if type(last) is events.RequestReceived and last.stream_id == stream_id:
                last.data, last.flow_controlled_length, last.stream_ended = data, size, True
                return
        self._events.append(events.DataReceived(stream_id, data, size, has_ended))

    def _on_headers(self, flags: int, stream_id: int, payload: Buffer) -> None:
        if not stream_id:
            raise ProtocolError("HEADERS on stream 0")
        block = bytes(_without_padding(payload) if flags & IS_PADDED else payload)
        if flags & HAS_PRIORITY:
            _check_dependency(stream_id, block)
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
        if stream_id > self._highest_stream_id:
            if not stream_id & 1:
                raise ProtocolError(f"Stream {stream_id} is not a client's")
            request = self.request_headers.kept.get(block)
            is_malformed = False
            if request is None:
                try:
                    request = self.request_headers.request(block)
                except MalformedHeadersError:
                    is_malformed = True
            self._highest_stream_id = stream_id
            has_ended = bool(flags & END_STREAM)
            self._streams[stream_id] = _Stream(self.client_settings.initial_window_size, None, has_ended)
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
                self._check_gone(stream_id)
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
        increment = (int.from_bytes(payload, "big") if len(payload) == 4 else _number(payload)) & 0x7FFFFFFF
        if not stream_id:
            if not increment:
                raise ProtocolError("WINDOW_UPDATE by 0")
            self._window += increment
            if self._window > LARGEST_WINDOW:
                raise FlowControlError(f"May not increment flow control window past {LARGEST_WINDOW}")
        else:
            stream = self._streams.get(stream_id)
            if stream is None:
                self._check_opened(stream_id)
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
        _number(payload)
        self._check_opened(stream_id)
        if self._streams.pop(stream_id, None) is not None:
            self._remember_reset(stream_id)
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
        _check_dependency(stream_id, payload)
        self._events.append(events.IgnoredFrame(PRIORITY))

    def _on_goaway(self, flags: int, stream_id: int, payload: Buffer) -> None:
        if stream_id:
            raise ProtocolError("GOAWAY on a stream")
        if len(payload) < 8:
            raise FrameDataMissingError(f"GOAWAY of {len(payload)} bytes, expected 8")
        self._events.append(events.IgnoredFrame(GOAWAY))

    def _on_misplaced(self, flags: int, stream_id: int, payload: Buffer) -> None:
        raise ProtocolError("PUSH_PROMISE by a client, or CONTINUATION of nothing")

    # Streams.

    def _reset(self, stream_id: int, error: ErrorCodes) -> None:
        """Reset an open stream for an error of the client."""
        self.reset_stream(stream_id, error)
        self._events.append(events.StreamReset(stream_id))

    def _remember_reset(self, stream_id: int) -> None:
        self._resets[stream_id] = None
        if len(self._resets) > _REMEMBERED_RESETS:
            del self._resets[next(iter(self._resets))]

    def _check_opened(self, stream_id: int) -> None:
        """A frame for a closed stream may arrive late; one for a stream that was never opened is an error."""
        if not stream_id & 1 or stream_id > self._highest_stream_id:
            raise ProtocolError(f"Stream {stream_id} is idle")

    def _check_gone(self, stream_id: int) -> None:
        """After END_STREAM of the client no frame may follow; after a reset it may."""
        self._check_opened(stream_id)
        if stream_id not in self._resets:
            raise StreamClosedError(stream_id)

    def _open(self, stream_id: int) -> _Stream:
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_answered:
            raise StreamClosedError(stream_id)
        return stream

    # What leaves.

    def data_to_send(self) -> list[Buffer]:
        """The frames made since the last time."""
        output, self.output = self.output, []
        return output

    def send_headers(self, stream_id: int, headers: Sequence[tuple[bytes, bytes]], *, end_stream: bool = False) -> None:
        """Raises StreamClosedError where the stream is not open any more, as all do that send on one."""
        stream = self._open(stream_id)
        self._send_block(stream, stream_id, self.response_headers.encode(headers), end_stream=end_stream)

    def send_header_block(self, stream_id: int, block: bytes, *, end_stream: bool = False) -> None:
        """As `send_headers`, of headers that are encoded."""
        self._send_block(self._open(stream_id), stream_id, block, end_stream=end_stream)

    def _send_block(self, stream: _Stream, stream_id: int, block: bytes, *, end_stream: bool) -> None:
        flags = END_STREAM if end_stream else 0
        limit = self.client_settings.max_frame_size
        if len(block) <= limit:
            self.output.append(frame(HEADERS, flags | END_HEADERS, stream_id, block))
        else:
            self.output.append(frame(HEADERS, flags, stream_id, block[:limit]))
            for start in range(limit, len(block), limit):
                is_last = start + limit >= len(block)
                part = block[start : start + limit]
                self.output.append(frame(CONTINUATION, END_HEADERS if is_last else 0, stream_id, part))
        if end_stream:
            self._note_answered(stream, stream_id)

    def _note_answered(self, stream: _Stream, stream_id: int) -> None:
        """Our direction of the stream is closed."""
        stream.is_answered = True
        if stream.has_ended:
            del self._streams[stream_id]

    def send_data(self, stream_id: int, parts: Sequence[Buffer], *, end_stream: bool = False) -> None:
        """A frame of no more than `sendable` bytes, which are not copied."""
        stream = self._open(stream_id)
        size = sum(map(len, parts))
        if size and size > min(stream.window, self._window):  # without data it fits a window that is shut
            raise FlowControlError(f"Cannot send {size} bytes, flow control window is {stream.window}")
        stream.window -= size
        self._window -= size
        self.output += (frame_header(size, DATA, END_STREAM if end_stream else 0, stream_id), *parts)
        if end_stream:
            self._note_answered(stream, stream_id)

    def send_data_at_once(
        self, stream_id: int, headers: Sequence[tuple[bytes, bytes]], parts: Sequence[Buffer], size: int
    ) -> bool:
        """A frame of `size` bytes of data, behind headers if there are any. False where it is more than `sendable`, and
        nothing is done."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_answered:
            raise StreamClosedError(stream_id)
        if size > min(stream.window, self._window, self.client_settings.max_frame_size, MAX_FRAME_SIZE):
            return False
        if headers:
            self.send_headers(stream_id, headers)
        stream.window -= size
        self._window -= size
        self.output += (pack_header(size >> 16, size & 0xFFFF, DATA, 0, stream_id), *parts)
        return True

    def send_response(
        self,
        stream_id: int,
        headers: ResponseBlock,
        parts: Sequence[Buffer],
        size: int,
        trailers: ResponseBlock,
    ) -> bool:
        """A whole response: as if `send_headers`, `send_data` for parts of `size` bytes and `send_headers` were called,
        with headers that fit into a frame. False where the data is more than `sendable`, and nothing is done. Small
        parts are copied."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_answered:
            raise StreamClosedError(stream_id)
        if size > min(stream.window, self._window, self.client_settings.max_frame_size, MAX_FRAME_SIZE):
            return False
        blocks = self.response_headers
        first = blocks.kept.get(headers) or blocks.encode(headers)
        last = blocks.kept.get(trailers) or blocks.encode(trailers)
        frames = (
            pack_header(0, len(first), HEADERS, END_HEADERS, stream_id),
            first,
            pack_header(size >> 16, size & 0xFFFF, DATA, 0, stream_id),
            *parts,
            pack_header(0, len(last), HEADERS, END_HEADERS | END_STREAM, stream_id),
            last,
        )
        self._send_whole(stream_id, stream, frames, size)
        return True

    def send_plain_response(self, stream_id: int, block: bytes, parts: Sequence[Buffer], size: int) -> None:
        """A whole response that ends with its data, of `size` bytes and no more than `sendable`; its headers are
        encoded, and fit into a frame. Small parts are copied."""
        frames = (
            pack_header(0, len(block), HEADERS, END_HEADERS, stream_id),
            block,
            pack_header(size >> 16, size & 0xFFFF, DATA, END_STREAM, stream_id),
            *parts,
        )
        self._send_whole(stream_id, self._streams[stream_id], frames, size)

    def _send_whole(self, stream_id: int, stream: _Stream, frames: Sequence[Buffer], size: int) -> None:
        """All frames of a response, with `size` bytes of data: the client's windows shrink, and our side has ended."""
        stream.window -= size
        self._window -= size
        if size < _JOINED_SIZE:
            self.output.append(b"".join(frames))
        else:
            self.output += frames
        stream.is_answered = True
        if stream.has_ended:
            del self._streams[stream_id]

    def sendable(self, stream_id: int) -> int:
        """How many bytes a DATA frame may have now; 0, or less, where the client has to open a window first."""
        return min(self._open(stream_id).window, self._window, self.client_settings.max_frame_size, MAX_FRAME_SIZE)

    def acknowledge_received_data(self, size: int, stream_id: int) -> None:
        """Return flow-control credit for received data, to the stream and the connection (WINDOW_UPDATE)."""
        self.give_back(size)
        self.give_back_to_stream(size, stream_id)

    def give_back_to_stream(self, size: int, stream_id: int) -> None:
        """As `acknowledge_received_data`, for the stream only."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.has_ended and stream.receive_window is not None:
            increment = stream.receive_window.give_back(size)
            if increment:
                self.output.append(frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big")))

    def give_back(self, size: int) -> None:
        """As `acknowledge_received_data`, for the connection only."""
        increment = self._receive_window.give_back(size)
        if increment:
            self.output.append(frame(WINDOW_UPDATE, 0, 0, increment.to_bytes(4, "big")))

    def reset_stream(self, stream_id: int, error: ErrorCodes) -> None:
        """Reset a stream, also one that is answered and whose client still sends."""
        if self._streams.pop(stream_id, None) is None:
            raise StreamClosedError(stream_id)
        self._remember_reset(stream_id)
        self.output.append(frame(RST_STREAM, 0, stream_id, error.to_bytes(4, "big")))

    def ping(self, data: bytes) -> None:
        self.output.append(frame(PING, 0, 0, data))

    def close_connection(
        self,
        error: ErrorCodes = ErrorCodes.NO_ERROR,
        additional_data: bytes = b"",
        last_stream_id: int | None = None,
    ) -> None:
        """Send GOAWAY; open streams go on."""
        last = self._highest_stream_id if last_stream_id is None else last_stream_id
        self.output.append(frame(GOAWAY, 0, 0, last.to_bytes(4, "big") + error.to_bytes(4, "big") + additional_data))


def _without_padding(payload: Buffer) -> Buffer:
    """Raises ProtocolError where there is more padding than payload."""
    if not payload:
        raise FrameDataMissingError("a padded frame without a length of its padding")
    end = len(payload) - payload[0]
    if end < 1:
        raise ProtocolError("Received frame with invalid padding.")
    return payload[1:end]


def _check_dependency(stream_id: int, priority: Buffer) -> None:
    if len(priority) < 5:
        raise FrameDataMissingError(f"a priority of {len(priority)} bytes, expected 5")
    if int.from_bytes(priority[:4], "big") & 0x7FFFFFFF == stream_id:
        raise ProtocolError(f"Stream {stream_id} may not depend on itself")


def _number(payload: Buffer) -> int:
    if len(payload) != 4:
        raise FrameDataMissingError(f"a frame of {len(payload)} bytes, expected 4")
    return int.from_bytes(payload, "big")
