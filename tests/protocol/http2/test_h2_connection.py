"""h2's connection, as far as it is our own: frames are refused by the size that they announce."""

from __future__ import annotations

import h2.events
import pytest
from h2.config import H2Configuration
from h2.errors import ErrorCodes
from h2.exceptions import FrameTooLargeError
from hyperframe.frame import GoAwayFrame

from protocol.http2.frames import DATA, PING, PREFACE, SETTINGS, frame, frame_header
from protocol.http2.h2_connection import PatientConnection

_SAYS = PREFACE + frame(SETTINGS, 0, 0) + frame(PING, 0, 0, b"12345678") * 3


def begun() -> PatientConnection:
    connection = PatientConnection(H2Configuration(client_side=False, header_encoding=None))
    connection.initiate_connection()
    connection.data_to_send()
    return connection


@pytest.mark.parametrize("step", [1, 2, 7, 9, 10, len(_SAYS)])
def test_a_frame_is_refused_by_the_size_that_it_announces(step: int) -> None:
    """However what comes before it, and its header, are cut."""
    connection = begun()
    said = _SAYS + frame_header(0xFFFFFF, DATA, 0, 1)
    pieces = [said[at : at + step] for at in range(0, len(said), step)]
    events = [event for piece in pieces[:-1] for event in connection.receive_data(piece)]
    assert sum(isinstance(event, h2.events.PingReceived) for event in events) == 3
    with pytest.raises(FrameTooLargeError, match="16777215"):
        connection.receive_data(pieces[-1])
    ending = connection.data_to_send()[-17:]
    found, _ = GoAwayFrame.parse_frame_header(memoryview(ending[:9]))
    found.parse_body(memoryview(ending[9:]))
    assert isinstance(found, GoAwayFrame)
    assert found.error_code == ErrorCodes.FRAME_SIZE_ERROR


@pytest.mark.parametrize("step", [1, 5, 1 << 20])
def test_frames_of_the_size_that_is_allowed_are_taken(step: int) -> None:
    connection = begun()
    payload = bytes(connection.max_inbound_frame_size)
    said = _SAYS + frame(0xFA, 0, 0, payload) * 2 + frame(PING, 0, 0, b"12345678")
    events = [each for at in range(0, len(said), step) for each in connection.receive_data(said[at : at + step])]
    assert isinstance(events[-1], h2.events.PingReceived)
