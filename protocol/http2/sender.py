"""Sender of an HTTP/2 server's frames: responses within the client's flow-control windows, and what a server says of
streams and of the connection. No I/O: the frames are collected in `output`.

The base of `ServerConnection`, which opens its streams and widens its windows as the client says.
"""

from __future__ import annotations

from collections.abc import Sequence

from h2.errors import ErrorCodes
from h2.exceptions import FlowControlError, StreamClosedError
from h2.settings import SettingCodes

from protocol.http2.client_settings import ClientSettings, pack_settings
from protocol.http2.flow_control import DEFAULT_WINDOW, ReceiveWindow
from protocol.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    frame_header,
    pack_header,
)
from protocol.http2.response_headers import ID_STARTS, ResponseBlock, ResponseHeaders, literal_request_id
from protocol.http2.streams import Stream, Streams
from protocol.messages import Buffer

# To join less than this costs less than to send parts from where they are.
_JOINED_SIZE = 65536


class FrameSender:
    """What the server sends on one connection. Methods that send on a stream raise StreamClosedError where it is not
    open any more.

    Attributes:
        client_settings: what the client can take.
        response_headers: the encoder of header blocks.
        output: frames that have been made.
    """

    __slots__ = (
        "_own_settings",
        "_receive_window",
        "_streams",
        "_window",
        "client_settings",
        "output",
        "response_headers",
    )

    def __init__(
        self, own_settings: dict[SettingCodes, int], connection_window: int, response_headers: ResponseHeaders
    ) -> None:
        self._own_settings = own_settings
        self.client_settings = ClientSettings()
        self.response_headers = response_headers
        self.output: list[Buffer] = []
        self._streams = Streams()
        self._window = DEFAULT_WINDOW
        self._receive_window = ReceiveWindow(max(connection_window, DEFAULT_WINDOW))

    def initiate_connection(self) -> None:
        """Send our settings, and widen the client's window for the connection."""
        self.output.append(frame(SETTINGS, 0, 0, pack_settings(self._own_settings)))
        increment = self._receive_window.size - DEFAULT_WINDOW
        if increment:
            self.output.append(frame(WINDOW_UPDATE, 0, 0, increment.to_bytes(4, "big")))

    def data_to_send(self) -> list[Buffer]:
        """The frames made since the last time."""
        output, self.output = self.output, []
        return output

    def send_headers(
        self,
        stream_id: int,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        end_stream: bool = False,
        request_id: bytes = b"",
    ) -> None:
        """With a `request_id` it is one of the headers, which is another one each time."""
        stream = self._streams.unanswered(stream_id)
        block = self.response_headers.encode(headers)
        if request_id:
            block += literal_request_id(request_id)
        self._send_block(stream, stream_id, block, end_stream=end_stream)

    def send_header_block(self, stream_id: int, block: bytes, *, end_stream: bool = False) -> None:
        """As `send_headers`, of headers that are encoded."""
        self._send_block(self._streams.unanswered(stream_id), stream_id, block, end_stream=end_stream)

    def _send_block(self, stream: Stream, stream_id: int, block: bytes, *, end_stream: bool) -> None:
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
            self._streams.note_answered(stream, stream_id)

    def send_data(self, stream_id: int, parts: Sequence[Buffer], *, end_stream: bool = False) -> None:
        """A frame of no more than `sendable` bytes, which are not copied."""
        stream = self._streams.unanswered(stream_id)
        size = sum(map(len, parts))
        if size and size > min(stream.window, self._window):  # without data it fits a window that is shut
            raise FlowControlError(f"Cannot send {size} bytes, flow control window is {stream.window}")
        stream.window -= size
        self._window -= size
        self.output += (frame_header(size, DATA, END_STREAM if end_stream else 0, stream_id), *parts)
        if end_stream:
            self._streams.note_answered(stream, stream_id)

    def send_data_at_once(
        self, stream_id: int, headers: Sequence[tuple[bytes, bytes]], parts: Sequence[Buffer], size: int
    ) -> bool:
        """A frame of `size` bytes of data, behind headers if there are any. False where it is more than `sendable`, and
        nothing is done."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_answered:
            raise StreamClosedError(stream_id)
        if size > stream.window or size > self._window or size > self.client_settings.max_frame_size:
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
        request_id: bytes,
    ) -> bool:
        """A whole response: as if `send_headers`, `send_data` for parts of `size` bytes and `send_headers` were called,
        with headers that fit into a frame; the `request_id` is in the trailers. False where the data is more than
        `sendable`, and nothing is done. Small parts are copied."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_answered:
            raise StreamClosedError(stream_id)
        if size > stream.window or size > self._window or size > self.client_settings.max_frame_size:
            return False
        blocks = self.response_headers
        first = blocks.kept.get(headers) or blocks.encode(headers)
        last = blocks.kept.get(trailers) or blocks.encode(trailers)
        last += ID_STARTS[len(request_id)] + request_id  # as `literal_request_id`, without its call
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

    def _send_whole(self, stream_id: int, stream: Stream, frames: Sequence[Buffer], size: int) -> None:
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
        stream = self._streams.unanswered(stream_id)
        return min(stream.window, self._window, self.client_settings.max_frame_size)

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
        if not self._streams.note_reset(stream_id):
            raise StreamClosedError(stream_id)
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
        last = self._streams.highest_id if last_stream_id is None else last_stream_id
        self.output.append(frame(GOAWAY, 0, 0, last.to_bytes(4, "big") + error.to_bytes(4, "big") + additional_data))
