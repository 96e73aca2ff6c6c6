"""What h2 is told to advertise, and that a GOAWAY is not the end."""

from __future__ import annotations

from typing import Any

import h2.events
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import ProtocolError

from protocol.grpc.http2 import MAX_FRAME_SIZE, ServerConnection

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
    client.receive_data(server.data_to_send())
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
    server.send_headers(1, [(":status", "200")], end_stream=True)
    sent = server.data_to_send()
    assert sent.index(b"\x07", 3) == 3  # GOAWAY first
    client.send_data(1, b"more", end_stream=True)
    events: list[Any] = server.receive_data(client.data_to_send())
    assert h2.events.DataReceived in [type(event) for event in events]


def test_after_the_clients_goaway_open_streams_finish() -> None:
    """And what was made but not sent yet is not dropped."""
    client, server = pair()
    client.send_headers(1, HEADERS, end_stream=True)
    server.receive_data(client.data_to_send())
    server.send_headers(1, [(":status", "200")])
    client.close_connection()
    server.receive_data(client.data_to_send())
    server.send_data(1, b"answer", end_stream=True)
    sent = server.data_to_send()
    assert sent[3] == 1  # HEADERS
    assert sent.endswith(b"answer")


def test_what_breaks_the_protocol_still_does() -> None:
    _, server = pair()
    with pytest.raises(ProtocolError):
        server.receive_data(b"\0\0\0\0\0\0\0\0\0")  # DATA on stream 0
