"""What is advertised, that a GOAWAY is not the end, and what a client must not do."""

from __future__ import annotations

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ResponseReceived
from h2.exceptions import FlowControlError, ProtocolError, StreamClosedError
from h2.settings import SettingCodes
from hpack.hpack import Encoder
from hyperframe.frame import GoAwayFrame, RstStreamFrame, WindowUpdateFrame

from protocol.http2 import events, frames
from protocol.http2.client_settings import pack_settings
from protocol.http2.connection import ServerConnection
from protocol.http2.frames import MAX_FRAME_SIZE, MAX_WHOLE_FRAME, frame
from tests.protocol.http2.reference import parsed

HEADERS = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "x")]


def pair(connection_window: int = 1 << 24) -> tuple[H2Connection, ServerConnection]:
    """A client and a server that have greeted each other."""
    server = ServerConnection(
        max_concurrent_streams=7, stream_window=100_000, connection_window=connection_window, max_header_size=5000
    )
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    server.initiate_connection()
    server.receive_data(client.data_to_send())
    client.receive_data(b"".join(server.data_to_send()))
    return client, server


def test_limits_are_advertised() -> None:
    client, _ = pair()
    settings = client.remote_settings
    assert (settings.max_concurrent_streams, settings.initial_window_size) == (7, 100_000)
    assert settings.max_frame_size == MAX_FRAME_SIZE
    assert client.outbound_flow_control_window == 1 << 24


@pytest.mark.parametrize("window", [65535, 1])
def test_a_connection_window_is_never_lowered(window: int) -> None:
    """HTTP/2 has no way to."""
    client, _ = pair(window)
    assert client.outbound_flow_control_window == 65535


def test_after_the_servers_goaway_open_streams_finish() -> None:
    client, server = pair()
    client.send_headers(1, HEADERS)
    server.receive_data(client.data_to_send())
    server.close_connection()
    server.send_headers(1, [(b":status", b"200")], end_stream=True)
    sent = b"".join(server.data_to_send())
    assert sent.index(b"\x07", 3) == 3  # GOAWAY first
    client.send_data(1, b"more", end_stream=True)
    happened = server.receive_data(client.data_to_send())
    assert events.DataReceived in [type(event) for event in happened]


def test_after_the_clients_goaway_open_streams_finish() -> None:
    """And what was made but not sent yet is not dropped."""
    client, server = pair()
    client.send_headers(1, HEADERS, end_stream=True)
    server.receive_data(client.data_to_send())
    server.send_headers(1, [(b":status", b"200")])
    client.close_connection()
    server.receive_data(client.data_to_send())
    server.send_data(1, [b"answer"])
    sent = b"".join(server.data_to_send())
    assert sent[3] == 1  # HEADERS
    assert sent.endswith(b"answer")


def test_what_breaks_the_protocol_still_does() -> None:
    _, server = pair()
    with pytest.raises(ProtocolError):
        server.receive_data(b"\0\0\0\0\0\0\0\0\0")  # DATA on stream 0


# What a client must not do, each alone, and what the connection says to it.

BLOCK = Encoder().encode([*HEADERS, ("content-type", "application/grpc")])
OPEN = frame(frames.HEADERS, frames.END_HEADERS, 1, BLOCK)
OPEN_AND_END = frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, BLOCK)
PROTOCOL, FLOW_CONTROL, STREAM_CLOSED = (
    ErrorCodes.PROTOCOL_ERROR,
    ErrorCodes.FLOW_CONTROL_ERROR,
    ErrorCodes.STREAM_CLOSED,
)
FRAME_SIZE, CALM = ErrorCodes.FRAME_SIZE_ERROR, ErrorCodes.ENHANCE_YOUR_CALM
ERRORS: dict[str, tuple[bytes, ErrorCodes]] = {
    "an even stream": (frame(frames.HEADERS, frames.END_HEADERS, 2, BLOCK), PROTOCOL),
    "headers on stream 0": (frame(frames.HEADERS, frames.END_HEADERS, 0, BLOCK), PROTOCOL),
    "a stream that was passed over": (
        frame(frames.HEADERS, frames.END_HEADERS, 5, BLOCK) + frame(frames.HEADERS, frames.END_HEADERS, 3, BLOCK),
        STREAM_CLOSED,
    ),
    "data on stream 0": (frame(frames.DATA, 0, 0, b"x"), PROTOCOL),
    "data of no stream": (frame(frames.DATA, 0, 1, b"x"), PROTOCOL),
    "a window of no stream": (frame(frames.WINDOW_UPDATE, 0, 1, b"\0\0\0\1"), PROTOCOL),
    "the reset of no stream": (frame(frames.RST_STREAM, 0, 1, b"\0\0\0\1"), PROTOCOL),
    "the reset of the connection": (frame(frames.RST_STREAM, 0, 0, b"\0\0\0\1"), PROTOCOL),
    "a window opened by nothing": (frame(frames.WINDOW_UPDATE, 0, 0, bytes(4)), PROTOCOL),
    "a window opened too far": (frame(frames.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), FLOW_CONTROL),
    "a window of three bytes": (frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\1"), FRAME_SIZE),
    "a long reset": (OPEN + frame(frames.RST_STREAM, 0, 1, bytes(5)), FRAME_SIZE),
    "a short ping": (frame(frames.PING, 0, 0, bytes(7)), FRAME_SIZE),
    "a ping on a stream": (frame(frames.PING, 0, 1, bytes(8)), PROTOCOL),
    "settings on a stream": (frame(frames.SETTINGS, 0, 1), PROTOCOL),
    "settings cut off": (frame(frames.SETTINGS, 0, 0, bytes(5)), FRAME_SIZE),
    "settings acknowledged with more": (frame(frames.SETTINGS, frames.ACK, 0, bytes(6)), FRAME_SIZE),
    "a priority of stream 0": (frame(frames.PRIORITY, 0, 0, bytes(5)), PROTOCOL),
    "a short priority": (frame(frames.PRIORITY, 0, 1, bytes(4)), FRAME_SIZE),
    "a stream that depends on itself": (frame(frames.PRIORITY, 0, 1, b"\0\0\0\1\1"), PROTOCOL),
    "headers that depend on themselves": (
        frame(frames.HEADERS, frames.END_HEADERS | frames.HAS_PRIORITY, 1, b"\0\0\0\1\1" + BLOCK),
        PROTOCOL,
    ),
    "a farewell on a stream": (frame(frames.GOAWAY, 0, 1, bytes(8)), PROTOCOL),
    "a short farewell": (frame(frames.GOAWAY, 0, 0, bytes(7)), FRAME_SIZE),
    "a promise": (frame(frames.PUSH_PROMISE, frames.END_HEADERS, 1, bytes(8)), PROTOCOL),
    "the rest of no headers": (frame(frames.CONTINUATION, frames.END_HEADERS, 1), PROTOCOL),
    "something within headers": (frame(frames.HEADERS, 0, 1, BLOCK) + frame(frames.PING, 0, 0, bytes(8)), PROTOCOL),
    "the rest of other headers": (
        frame(frames.HEADERS, 0, 1, BLOCK) + frame(frames.CONTINUATION, frames.END_HEADERS, 3),
        PROTOCOL,
    ),
    "headers without end": (frame(frames.HEADERS, 0, 1) + frame(frames.CONTINUATION, 0, 1, b"x") * 65, PROTOCOL),
    "headers of megabytes": (frame(frames.HEADERS, 0, 1) + frame(frames.CONTINUATION, 0, 1, bytes(16_000)) * 2, CALM),
    "padding and nothing else": (OPEN + frame(frames.DATA, frames.IS_PADDED, 1, b"\5"), PROTOCOL),
    "padding without its length": (OPEN + frame(frames.DATA, frames.IS_PADDED, 1), FRAME_SIZE),
    "more data than the window": (OPEN + frame(frames.DATA, 0, 1, bytes(60_000)) * 2, FLOW_CONTROL),
    "a frame that is too large": (frames.frame_header(MAX_FRAME_SIZE + 1, frames.DATA, 0, 1), FRAME_SIZE),
    "headers that are too large": (frames.frame_header(MAX_WHOLE_FRAME + 1, frames.HEADERS, 0, 1), FRAME_SIZE),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_ends_the_connection(name: str) -> None:
    data, error = ERRORS[name]
    _, server = pair()
    with pytest.raises(ProtocolError) as raised:
        server.receive_data(data)
    assert raised.value.error_code == error
    goaway = parsed(b"".join(server.data_to_send()))[-1]
    assert isinstance(goaway, GoAwayFrame)
    assert goaway.error_code == error


BAD_BLOCK = bytes(Encoder().encode([("Upper", "x")]))
AT_END = frames.END_HEADERS | frames.END_STREAM
STREAM_ERRORS = {
    "a request whose headers are malformed": (frame(frames.HEADERS, frames.END_HEADERS, 1, BAD_BLOCK), PROTOCOL),
    "trailers that are not the end": (
        OPEN + frame(frames.HEADERS, frames.END_HEADERS, 1, bytes(Encoder().encode([("a", "b")]))),
        PROTOCOL,
    ),
    "trailers that are malformed": (OPEN + frame(frames.HEADERS, AT_END, 1, BAD_BLOCK), PROTOCOL),
    "a window of a stream opened by nothing": (OPEN + frame(frames.WINDOW_UPDATE, 0, 1, bytes(4)), PROTOCOL),
    "data behind the end": (OPEN_AND_END + frame(frames.DATA, 0, 1, b"x"), STREAM_CLOSED),
    "headers behind the end": (OPEN_AND_END + OPEN, STREAM_CLOSED),
    "a window of a stream opened too far": (
        OPEN + frame(frames.WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff"),
        FLOW_CONTROL,
    ),
}


@pytest.mark.parametrize("name", STREAM_ERRORS)
def test_what_ends_one_stream(name: str) -> None:
    """The owner hears of it; what else comes for it is let pass, and the connection goes on."""
    data, error = STREAM_ERRORS[name]
    _, server = pair()
    happened = server.receive_data(data)
    assert isinstance(happened[-1], events.StreamReset)
    (reset,) = parsed(b"".join(server.data_to_send()))
    assert isinstance(reset, RstStreamFrame)
    assert (reset.stream_id, reset.error_code) == (1, error)
    assert server.receive_data(frame(frames.DATA, 0, 1, b"late") + frame(frames.RST_STREAM, 0, 1, bytes(4))) == []
    assert len(server.receive_data(frame(frames.HEADERS, frames.END_HEADERS, 3, BLOCK))) == 1


def test_a_stream_that_both_have_ended_is_forgotten() -> None:
    _, server = pair()
    for stream in range(1, 2001, 2):
        server.receive_data(frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream, BLOCK))
        server.send_headers(stream, [(b":status", b"200")], end_stream=True)
        with pytest.raises(StreamClosedError):
            server.send_data(stream, [b"more"])
    assert not server._streams


@pytest.mark.slow
def test_resets_are_remembered_for_a_while() -> None:
    """Long enough for what was on its way, and no more of them than fit."""
    _, server = pair()
    for stream in range(1, 12_000, 2):
        server.receive_data(frame(frames.HEADERS, frames.END_HEADERS, stream, BLOCK))
        server.receive_data(frame(frames.RST_STREAM, 0, stream, bytes(4)))
    assert server.receive_data(frame(frames.DATA, 0, 11_999, b"late")) == []
    assert len(server._streams._resets) == 4096
    with pytest.raises(StreamClosedError):
        server.receive_data(frame(frames.DATA, 0, 1, b"much too late"))


def test_data_for_a_reset_stream_gives_the_connections_window_back() -> None:
    """However much is on its way."""
    _, server = pair(100_000)
    server.receive_data(OPEN)
    server.reset_stream(1, ErrorCodes.CANCEL)
    for _ in range(10):
        server.receive_data(frame(frames.DATA, 0, 1, bytes(50_000)))
    windows = [one for one in parsed(b"".join(server.data_to_send())) if isinstance(one, WindowUpdateFrame)]
    assert sum(one.window_increment for one in windows if one.stream_id == 0) == 500_000


@pytest.mark.slow
def test_headers_that_do_not_fit_a_frame() -> None:
    client, server = pair()
    client.send_headers(1, HEADERS, end_stream=True)
    server.receive_data(client.data_to_send())
    text = "x" * 40_000
    server.send_headers(1, [(b":status", b"200"), (b"grpc-message", text.encode())], end_stream=True)
    response, *_ = client.receive_data(b"".join(server.data_to_send()))
    assert isinstance(response, ResponseReceived)
    assert dict(response.headers)[b"grpc-message"] == text.encode()


def test_no_more_is_sent_than_the_windows_allow() -> None:
    client, server = pair()
    client.send_headers(1, HEADERS, end_stream=True)
    server.receive_data(client.data_to_send())
    server.send_headers(1, [(b":status", b"200")])
    assert server.sendable(1) == 16_384  # a frame
    for _ in range(3):
        server.send_data(1, [bytes(16_384)])
    assert server.sendable(1) == 65_535 - 3 * 16_384
    with pytest.raises(FlowControlError):
        server.send_data(1, [bytes(16_384)])


def test_settings_widen_the_windows_of_open_streams() -> None:
    _, server = pair()
    server.receive_data(OPEN)
    server.receive_data(frame(frames.SETTINGS, 0, 0, pack_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})))
    assert server.sendable(1) == 10
    server.send_headers(1, [(b":status", b"200")])
    server.send_data(1, [bytes(10)])
    server.receive_data(frame(frames.SETTINGS, 0, 0, pack_settings({SettingCodes.INITIAL_WINDOW_SIZE: 4})))
    assert server.sendable(1) == -6
    server.receive_data(frame(frames.WINDOW_UPDATE, 0, 1, b"\0\0\0\7"))
    assert server.sendable(1) == 1


def test_the_events_of_so_many_frames_are_given_at_a_time() -> None:
    _, server = pair()
    pings = b"".join(frame(frames.PING, frames.ACK, 0, number.to_bytes(8, "big")) for number in range(5))
    happened = [server.receive_data(pings, 2)]
    while server.has_frames_left:
        happened.append(server.receive_data(None, 2))
    assert [len(some) for some in happened] == [2, 2, 1]
    numbers = [event.ping_data[-1] for some in happened for event in some if isinstance(event, events.PingAckReceived)]
    assert numbers == [0, 1, 2, 3, 4]


def test_what_is_wrong_behind_frames_that_wait_is_found_behind_them() -> None:
    _, server = pair()
    data = frame(frames.PING, 0, 0, bytes(8)) * 2 + frame(frames.PING, 0, 1, bytes(8))
    assert len(server.receive_data(data, 1)) == 1
    assert len(server.receive_data(None, 1)) == 1
    with pytest.raises(ProtocolError):
        server.receive_data(None, 1)
    assert not server.has_frames_left
