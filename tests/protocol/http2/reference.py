"""h2's server connection, set up as a gRPC server's, and both connections' events in words that can be compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import h2.events
from h2.config import H2Configuration
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame

from protocol.http2 import events, frames
from protocol.http2.connection import ServerConnection
from protocol.http2.frames import MAX_FRAME_SIZE
from protocol.http2.h2_connection import PatientConnection

LIMITS: dict[str, Any] = {
    "max_concurrent_streams": 100,
    "stream_window": 100_000,
    "connection_window": 1 << 20,
    "max_header_size": 8192,
}


class Reference(PatientConnection):
    MAX_CLOSED_STREAMS = 4096

    def __init__(self) -> None:
        super().__init__(
            H2Configuration(
                client_side=False,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: LIMITS["max_concurrent_streams"],
                SettingCodes.MAX_HEADER_LIST_SIZE: LIMITS["max_header_size"],
                SettingCodes.INITIAL_WINDOW_SIZE: LIMITS["stream_window"],
                SettingCodes.MAX_FRAME_SIZE: MAX_FRAME_SIZE,
            },
        )
        self.decoder.max_header_list_size = 2 * LIMITS["max_header_size"]
        self.max_inbound_frame_size = MAX_FRAME_SIZE

    def initiate_connection(self) -> None:
        super().initiate_connection()
        self.increment_flow_control_window(LIMITS["connection_window"] - 65535)


def started() -> ServerConnection:
    """Our own, with what it says first already taken."""
    connection = ServerConnection(**LIMITS)
    connection.initiate_connection()
    connection.data_to_send()
    return connection


def started_reference() -> Reference:
    connection = Reference()
    connection.initiate_connection()
    connection.data_to_send()
    return connection


def ours_in_words(happened: Iterable[events.Event]) -> list[Any]:
    words: list[Any] = []
    for event in happened:
        match event:
            case events.RequestReceived():
                headers = tuple(map(tuple, event.request))
                ends = event.stream_ended and event.data is None
                words.append(("request", event.stream_id, headers, ends))
                if event.data is not None:
                    data = bytes(event.data)
                    words.append(("data", event.stream_id, data, event.flow_controlled_length, event.stream_ended))
            case events.DataReceived():
                words.append(
                    ("data", event.stream_id, bytes(event.data), event.flow_controlled_length, event.stream_ended)
                )
            case events.TrailersReceived():
                words.append(("trailers", event.stream_id))
            case events.StreamReset():
                words.append(("reset", event.stream_id))
            case events.WindowUpdated():
                words.append(("windows", event.stream_ids))
            case events.RemoteSettingsChanged():
                words.append(("settings",))
            case events.PingReceived():
                words.append(("ping",))
            case events.PingAckReceived():
                words.append(("pong", event.ping_data))
            case events.IgnoredFrame():
                words.append(("ignored", event.kind))
    return words


def theirs_in_words(happened: Iterable[h2.events.Event]) -> list[Any]:
    words: list[Any] = []
    updated: list[int] = []
    for event in happened:
        match event:
            case h2.events.RequestReceived():
                headers: Any = event.headers
                words.append(("request", event.stream_id, tuple(map(tuple, headers)), event.stream_ended is not None))
            case h2.events.DataReceived():
                has_ended = event.stream_ended is not None
                words.append(("data", event.stream_id, event.data, event.flow_controlled_length, has_ended))
            case h2.events.TrailersReceived():
                words.append(("trailers", event.stream_id))
            case h2.events.StreamReset():
                words.append(("reset", event.stream_id))
            case h2.events.WindowUpdated():
                updated.append(event.stream_id)
            case h2.events.RemoteSettingsChanged():
                words.append(("settings",))
            case h2.events.PingReceived():
                words.append(("ping",))
            case h2.events.PingAckReceived():
                words.append(("pong", event.ping_data))
            case h2.events.SettingsAcknowledged():
                words.append(("ignored", frames.SETTINGS))
            case h2.events.PriorityUpdated():
                words.append(("ignored", frames.PRIORITY))
            case h2.events.ConnectionTerminated():
                words.append(("ignored", frames.GOAWAY))
            case h2.events.UnknownFrameReceived():
                words.append(("ignored", event.frame.type))
            case _:
                assert isinstance(event, h2.events.StreamEnded)  # said by the event before
    return [*words, ("windows", updated)] if updated else words


def parsed(data: bytes) -> list[Frame]:
    """What a server has sent, by hyperframe."""
    found = []
    while data:
        one, length = Frame.parse_frame_header(memoryview(data[:9]))
        one.parse_body(memoryview(data[9 : 9 + length]))
        found.append(one)
        data = data[9 + length :]
    return found
