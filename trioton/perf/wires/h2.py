"""HTTP/2 for a gRPC client: calls out, messages and ends in. Sans-IO.

`start` → `open` and `send` calls, `receive` what comes → `take_output` is to be written after either.

As far as gRPC needs it, and for many small calls: all of them have the same headers, which are encoded once, and header
blocks of responses that leave the table of names as it is are decoded once. Source: RFC 9113, RFC 7541.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import unquote

import hpack
import msgspec
from h2.exceptions import ProtocolError

from protocol.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADER_SIZE,
    HEADERS,
    IS_PADDED,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    pack_header,
    unpack_header,
    without_padding,
)
from protocol.messages import Buffer
from trioton.perf.wires.header_blocks import leaves_table, without_request_id

# Settings by their codes.
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _MAX_STREAMS, _INITIAL_WINDOW, _MAX_FRAME_SIZE = 1, 2, 3, 4, 5
_SETTING = struct.Struct(">HI")
_DEFAULT_WINDOW = 65535
_LARGEST_WINDOW = 2**31 - 1
_RETURN_AT = 1 << 29  # received bytes after which credit is given back
_DEFAULT_FRAME = 16384
_OWN_FRAME = 1 << 20
_CANCEL = 8
_MOST_KEPT_BLOCKS = 64
_LAST_HEADERS = END_HEADERS | END_STREAM
_GOOD = "0", ""  # status and message
_PREFIX = 5
STATUS_NAMES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip


class H2Error(Exception):
    """The peer breaks the protocol; the connection is of no use any more."""


class Handler(Protocol):
    """Who is told of responses."""

    def message(self, stream_id: int, data: Buffer) -> None: ...

    def end(self, stream_id: int, error: str) -> None:
        """The call has ended, well where there is no error."""


class Stream(msgspec.Struct, eq=False):
    """A call that is open."""

    window: int
    received: int = 0  # bytes for which credit is to be given back
    partial: bytearray | None = None  # of a message that has come in part
    unsent: deque[memoryview] | None = None  # what the windows do not let out yet
    ends: bool = False  # the call has no other messages


def prefixed(message: bytes) -> bytes:
    """A message as gRPC frames it, uncompressed."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class H2Client:
    """Calls of one kind, with the same headers.

    Attributes:
        max_streams: calls at a time that the peer takes.
        streams: the calls that are open, by their numbers.
        is_closing: whether the peer takes no more calls.
    """

    def __init__(self, headers: Sequence[tuple[str, str]], handler: Handler) -> None:
        self.max_streams = 100  # until it says otherwise
        self.is_closing = False
        self._headers = list(headers)
        self._handler = handler
        self._encoder: Any = hpack.Encoder()
        self._decoder: Any = hpack.Decoder(max_header_list_size=1 << 20)
        self._block = b""
        self._has_first = False
        self._next_id = 1
        self.streams: dict[int, Stream] = {}
        self._window = _DEFAULT_WINDOW
        self._initial_window = _DEFAULT_WINDOW
        self._frame_size = _DEFAULT_FRAME
        self._received = 0
        self._rest = b""
        self._kept: dict[bytes, tuple[str, str]] = {}
        self._skipped: set[bytes] = set()  # heads of responses that leave the table, whatever is in it
        self._open_block: tuple[int, int, bytes] | None = None
        self._output: list[Buffer] = []

    def start(self) -> None:
        """Say what a client says first."""
        values = {_ENABLE_PUSH: 0, _INITIAL_WINDOW: _LARGEST_WINDOW, _MAX_FRAME_SIZE: _OWN_FRAME}
        settings = b"".join(_SETTING.pack(code, value) for code, value in values.items())
        window = (_LARGEST_WINDOW - _DEFAULT_WINDOW).to_bytes(4, "big")
        self._output += [PREFACE, frame(SETTINGS, 0, 0, settings), frame(WINDOW_UPDATE, 0, 0, window)]

    def open(self, message: bytes = b"", *, ends: bool = True) -> int:
        """Begin a call, with its only message, which is framed already, or with none yet. Returns its stream."""
        stream_id = self._next_id
        self._next_id += 2
        block = self._block or self._encoded()
        size = len(message)
        head = pack_header(0, len(block), HEADERS, END_HEADERS, stream_id)
        if size <= self._frame_size and size <= self._window and size <= self._initial_window and ends:
            self._window -= size
            self.streams[stream_id] = Stream(self._initial_window - size, ends=True)
            self._output.append(
                b"%b%b%b%b"
                % (head, block, pack_header(size >> 16, size & 0xFFFF, DATA, END_STREAM, stream_id), message)
            )
            return stream_id
        self._output.append(head + block)
        self.streams[stream_id] = Stream(self._initial_window, ends=ends)
        if message:
            self.send(stream_id, message)
        return stream_id

    def send(self, stream_id: int, message: bytes) -> None:
        """Another message of a call that is open."""
        stream = self.streams[stream_id]
        size = len(message)
        if (
            not stream.ends
            and not stream.unsent
            and size <= self._frame_size
            and size <= self._window
            and size <= stream.window
        ):
            self._window -= size
            stream.window -= size
            self._output.append(pack_header(size >> 16, size & 0xFFFF, DATA, 0, stream_id) + message)
            return
        if stream.unsent is None:
            stream.unsent = deque()
        stream.unsent.append(memoryview(message))
        self._send_unsent(stream_id, stream)

    def cancel(self, stream_id: int) -> None:
        """Give a call up; nothing more is told of it."""
        if self.streams.pop(stream_id, None) is not None:
            self._output.append(frame(RST_STREAM, 0, stream_id, _CANCEL.to_bytes(4, "big")))

    def take_output(self) -> list[Buffer]:
        """What is to be written since the last call."""
        output, self._output = self._output, []
        return output

    def receive(self, data: bytes) -> None:
        """Take what has come, and tell the handler.

        Raises:
            H2Error: that is no HTTP/2, or more than is allowed.
        """
        if self._rest:
            data = self._rest + data
        position, length = 0, len(data)
        while length - position >= HEADER_SIZE:
            high, low, kind, flags, stream_id = unpack_header(data, position)
            start = position + HEADER_SIZE
            end = start + (high << 16) + low
            if end > length:
                if end - start > _OWN_FRAME:
                    raise H2Error(f"a frame of {end - start} bytes is larger than allowed")
                break
            position = end
            if self._open_block is not None and kind != CONTINUATION:
                raise H2Error("header frames are interrupted")
            if kind == DATA:
                self._take_data(stream_id, flags, data[start:end])
            elif kind == HEADERS:
                block = data[start:end]
                if flags == END_HEADERS and block in self._skipped:
                    continue
                if flags == _LAST_HEADERS and self._kept.get(without_request_id(block)) == _GOOD:
                    if self.streams.pop(stream_id, None) is not None:
                        self._handler.end(stream_id, "")
                    continue
                self._take_headers(stream_id, flags, block)
            else:
                self._take_other(kind, flags, stream_id, data[start:end])
        self._rest = data[position:]

    def fail_all(self, error: str) -> None:
        """The connection is lost: all calls have failed."""
        self.is_closing = True
        streams, self.streams = self.streams, {}
        for stream_id in streams:
            self._handler.end(stream_id, error)

    def _encoded(self) -> bytes:
        """The block of the first call fills the table, that of all others refers to it."""
        block: bytes = self._encoder.encode(self._headers)
        if self._has_first:
            self._block = block
        self._has_first = True
        return block

    def _take_data(self, stream_id: int, flags: int, payload: bytes) -> None:
        self._received += len(payload)
        if self._received > _RETURN_AT:
            self._output.append(frame(WINDOW_UPDATE, 0, 0, self._received.to_bytes(4, "big")))
            self._received = 0
        stream = self.streams.get(stream_id)
        if stream is None:  # given up
            return
        stream.received += len(payload)
        if stream.received > _RETURN_AT:
            self._output.append(frame(WINDOW_UPDATE, 0, stream_id, stream.received.to_bytes(4, "big")))
            stream.received = 0
        if flags & IS_PADDED:
            payload = _without_padding(payload)
        size = len(payload) - _PREFIX
        if size == int.from_bytes(payload[1:_PREFIX], "big") and stream.partial is None and not payload[0]:
            self._handler.message(stream_id, payload[_PREFIX:])  # one whole message, as nearly always
        elif payload:
            self._take_parts(stream_id, stream, payload)
        if flags & END_STREAM:
            self._end(stream_id, "the call has ended without a status")

    def _take_parts(self, stream_id: int, stream: Stream, payload: bytes) -> None:
        held = stream.partial
        if held is None:
            held = stream.partial = bytearray()
        held += payload
        while len(held) >= _PREFIX:
            size = int.from_bytes(held[1:5], "big")
            if len(held) < _PREFIX + size:
                break
            message = bytes(held[_PREFIX : _PREFIX + size])
            compressed = held[0]
            del held[: _PREFIX + size]
            self._tell(stream_id, compressed, message)
        if not held:
            stream.partial = None

    def _tell(self, stream_id: int, compressed: int, message: bytes) -> None:
        if compressed:
            raise H2Error("a message is compressed, which was not asked for")
        self._handler.message(stream_id, message)

    def _take_headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        if flags & IS_PADDED:
            payload = _without_padding(payload)
        if flags & HAS_PRIORITY:
            payload = payload[5:]
        if not flags & END_HEADERS:
            self._open_block = stream_id, flags, payload
            return
        self._take_block(stream_id, flags, payload)

    def _take_block(self, stream_id: int, flags: int, block: bytes) -> None:
        if block in self._skipped and not flags & END_STREAM:
            return
        found = self._kept.get(block)
        if found is None:
            block = without_request_id(block)
            found = self._kept.get(block)
        if found is None:
            if not flags & END_STREAM and leaves_table(block):  # the head of a response, of no interest
                if len(self._skipped) < _MOST_KEPT_BLOCKS:
                    self._skipped.add(block)
                return
            found = self._decoded(block)
        if not flags & END_STREAM:
            return
        status, text = found
        if status == "0":
            self._end(stream_id, "")
        else:
            number = int(status) if status.isdecimal() else 2
            name = STATUS_NAMES[number] if number < len(STATUS_NAMES) else str(number)
            self._end(stream_id, f"{name}: {text}" if text else name)

    def _decoded(self, block: bytes) -> tuple[str, str]:
        """Status and message, empty where there are none."""
        entries = self._decoder.header_table.dynamic_entries
        before = len(entries), entries[0] if entries else None
        try:
            headers = dict(self._decoder.decode(block))
        except hpack.HPACKError as error:
            raise H2Error(f"headers cannot be decoded: {error}") from None
        status = headers.get("grpc-status", "")
        text = unquote(headers.get("grpc-message", ""))
        if not status and headers.get(":status", "200") != "200":
            status, text = "2", f"the server answers with HTTP {headers[':status']}"
        if (len(entries), entries[0] if entries else None) == before:
            if len(self._kept) >= _MOST_KEPT_BLOCKS:
                self._kept.clear()
            self._kept[block] = status, text
        else:  # what the same bytes mean has changed
            self._kept.clear()
        return status, text

    def _end(self, stream_id: int, error: str) -> None:
        if self.streams.pop(stream_id, None) is not None:
            self._handler.end(stream_id, error)

    def _take_other(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == WINDOW_UPDATE:
            self._widen(stream_id, int.from_bytes(payload, "big") & _LARGEST_WINDOW)
        elif kind == SETTINGS:
            if not flags & ACK:
                self._take_settings(payload)
        elif kind == PING:
            if not flags & ACK:
                self._output.append(frame(PING, ACK, 0, payload))
        elif kind == RST_STREAM:
            code = int.from_bytes(payload, "big")
            self._end(stream_id, f"UNAVAILABLE: the server has reset the call with code {code}")
        elif kind == GOAWAY:
            self._go_away(payload)
        elif kind == CONTINUATION:
            if self._open_block is None or self._open_block[0] != stream_id:
                raise H2Error("CONTINUATION without HEADERS")
            opened, first_flags, block = self._open_block
            self._open_block = opened, first_flags, block + payload
            if flags & END_HEADERS:
                self._open_block = None
                self._take_block(opened, first_flags, block + payload)

    def _go_away(self, payload: bytes) -> None:
        self.is_closing = True
        last = int.from_bytes(payload[:4], "big") & _LARGEST_WINDOW
        text = payload[8:].decode(errors="replace")
        for stream_id in [each for each in self.streams if each > last]:
            self._end(stream_id, f"UNAVAILABLE: the server takes no more calls {text}".rstrip())

    def _take_settings(self, payload: bytes) -> None:
        if len(payload) % _SETTING.size:
            raise H2Error("SETTINGS are cut short")
        for code, value in _SETTING.iter_unpack(payload):
            if code == _INITIAL_WINDOW:
                for stream in self.streams.values():
                    stream.window += value - self._initial_window
                self._initial_window = value
            elif code == _MAX_FRAME_SIZE:
                self._frame_size = min(value, _OWN_FRAME)
            elif code == _MAX_STREAMS:
                self.max_streams = value
            elif code == _HEADER_TABLE_SIZE and value < self._encoder.header_table_size:
                self._encoder.header_table_size = value
                self._block, self._has_first = b"", False
        self._output.append(frame(SETTINGS, ACK, 0))
        self._send_all_unsent()

    def _widen(self, stream_id: int, by: int) -> None:
        if stream_id == 0:
            self._window += by
            self._send_all_unsent()
        elif (stream := self.streams.get(stream_id)) is not None:
            stream.window += by
            if stream.unsent:
                self._send_unsent(stream_id, stream)

    def _send_all_unsent(self) -> None:
        for stream_id, stream in self.streams.items():
            if stream.unsent:
                self._send_unsent(stream_id, stream)

    def _send_unsent(self, stream_id: int, stream: Stream) -> None:
        unsent = stream.unsent
        while unsent:
            part = unsent[0]
            size = min(len(part), self._frame_size, self._window, stream.window)
            if size <= 0 and len(part):
                return
            if size == len(part):
                unsent.popleft()
            else:
                unsent[0] = part[size:]
            self._window -= size
            stream.window -= size
            flags = END_STREAM if stream.ends and not unsent else 0
            self._output += [pack_header(size >> 16, size & 0xFFFF, DATA, flags, stream_id), part[:size]]


def _without_padding(payload: bytes) -> bytes:
    try:
        return bytes(without_padding(payload))
    except ProtocolError as error:
        raise H2Error(str(error)) from None
