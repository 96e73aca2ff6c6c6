"""h2's server connection for long-lived connections: graceful GOAWAY, refused streams, and bounded memory.

h2 takes a GOAWAY in either direction for the end of the connection. It is not: it says that no more streams are opened,
and those that are open finish (RFC 9113, 6.8). h2 also keeps every stream that was ever closed, up to 65536, and any
number of settings, and all of a frame before it looks at its size, and lets a peer choose what the memory of its
encoder may take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from h2.config import H2Configuration
from h2.connection import ConnectionInputs, ConnectionState, H2Connection, H2ConnectionStateMachine
from h2.errors import ErrorCodes
from h2.events import Event, WindowUpdated
from h2.exceptions import DenialOfServiceError, FrameTooLargeError
from h2.settings import SettingCodes
from hpack.hpack import Encoder
from hyperframe.frame import Frame, SettingsFrame, WindowUpdateFrame

from protocol.http2.frames import HEADER_SIZE, PREFACE
from protocol.http2.header_table import SmallHeaderTable

if TYPE_CHECKING:
    from h2._typing import Buffer

HIGHEST_STREAM_ID = 2**31 - 1

_KNOWN_SETTINGS = frozenset(SettingCodes)
# A frame of settings has room for thousands; nobody has more to say than there are settings.
MAX_SETTINGS_IN_FRAME = 64
# What our own headers may take in the memory of the encoder; a peer allows more, or less, as it likes.
MAX_ENCODER_TABLE = 4096


class TooManySettingsError(DenialOfServiceError):
    """A SETTINGS frame with far more settings than exist."""


class _FrameSizes:
    """Follows what a client sends from frame to frame."""

    def __init__(self) -> None:
        self._left = len(PREFACE)  # of the frame that is being received
        self._header = b""  # the start of the next one's

    def largest(self, data: bytes) -> int:
        """The size that the largest of the frames announces which begin in these bytes; 0 where none does."""
        position, largest = 0, 0
        while True:
            position += self._left
            if position > len(data):
                self._left = position - len(data)
                return largest
            self._left = 0
            missing = HEADER_SIZE - len(self._header)
            self._header += data[position : position + missing]
            if len(self._header) < HEADER_SIZE:
                return largest
            position += missing
            self._left = int.from_bytes(self._header[:3], "big")
            self._header = b""
            largest = max(largest, self._left)


class _StateMachine(H2ConnectionStateMachine):
    _transitions = {  # noqa: RUF012  (h2's own attribute, which is not annotated)
        **H2ConnectionStateMachine._transitions,
        (ConnectionState.IDLE, ConnectionInputs.SEND_GOAWAY): (None, ConnectionState.IDLE),
        (ConnectionState.IDLE, ConnectionInputs.RECV_GOAWAY): (None, ConnectionState.IDLE),
        (ConnectionState.SERVER_OPEN, ConnectionInputs.SEND_GOAWAY): (None, ConnectionState.SERVER_OPEN),
        (ConnectionState.SERVER_OPEN, ConnectionInputs.RECV_GOAWAY): (None, ConnectionState.SERVER_OPEN),
    }


class BoundedEncoder(Encoder):
    """An HPACK encoder with a bounded table, as a peer sets its size, and error texts would fill it."""

    def __init__(self) -> None:
        super().__init__()
        self.header_table = SmallHeaderTable()

    @property
    def header_table_size(self) -> int:
        return super().header_table_size

    @header_table_size.setter
    def header_table_size(self, value: int) -> None:
        Encoder.header_table_size.fset(self, min(value, MAX_ENCODER_TABLE))  # type: ignore[attr-defined]  # a property


class PatientConnection(H2Connection):
    """After `close_connection` and after the peer's GOAWAY the open streams go on; whoever owns the connection refuses
    new ones, and closes it when the last stream has ended.

    More streams than the limit that is told to the peer are for the owner to refuse, one by one (RFC 9113, 5.1.2); h2
    would end the connection, and a peer may have opened them before it was told.
    """

    # Of a stream forgotten it is no longer known how it ended: frames that come late for it are then an error.
    MAX_CLOSED_STREAMS = 1024

    def __init__(self, config: H2Configuration) -> None:
        super().__init__(config)
        self.state_machine = _StateMachine()
        self.encoder = BoundedEncoder()
        self._sweep_above = 64
        self._frame_sizes = _FrameSizes()

    def receive_data(self, data: Buffer) -> list[Event]:
        """As h2's, which keeps up to 16 MB of a frame that it refuses then."""
        data = bytes(data)  # no copy of what is read here
        size = self._frame_sizes.largest(data)
        if size > self.max_inbound_frame_size:
            self.close_connection(ErrorCodes.FRAME_SIZE_ERROR)
            raise FrameTooLargeError(f"Received overlong frame: length {size}, max {self.max_inbound_frame_size}")
        return super().receive_data(data)

    @property
    def open_inbound_streams(self) -> int:
        """0: h2 asks this for each new stream, to refuse too many. What it does on the way, forget the streams that
        have ended, takes a look at all of them; here that is done when half of them may have."""
        if len(self.streams) > self._sweep_above:
            self._sweep_above = 2 * super().open_inbound_streams + 64
        return 0

    def clear_outbound_data_buffer(self) -> None:
        """h2 drops what is not sent yet when the peer's GOAWAY comes; its open streams still wait for it."""

    def _receive_window_update_frame(self, frame: WindowUpdateFrame) -> tuple[list[Frame], list[Event]]:
        """h2 says nothing of one for a stream that has ended, so that nobody could count them."""
        frames, events = super()._receive_window_update_frame(frame)
        return frames, events or [WindowUpdated(stream_id=frame.stream_id, delta=frame.window_increment)]

    def _receive_settings_frame(self, frame: SettingsFrame) -> tuple[list[Frame], list[Event]]:
        """Settings that h2 does not know it would keep, 65536 at worst."""
        if len(frame.settings) > MAX_SETTINGS_IN_FRAME:
            raise TooManySettingsError(f"a frame of {len(frame.settings)} settings")
        known: dict[Any, int] = {key: value for key, value in frame.settings.items() if key in _KNOWN_SETTINGS}
        frame.settings = known
        return super()._receive_settings_frame(frame)
