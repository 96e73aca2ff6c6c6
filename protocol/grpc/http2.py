"""h2's connection, set up for a gRPC server: with graceful GOAWAY, and without what a peer could make it hold.

h2 takes a GOAWAY in either direction for the end of the connection. It is not: it says that no more streams are
opened, and those that are open finish (RFC 9113, section 6.8). Draining needs that.
"""

from __future__ import annotations

from typing import Any

from h2.config import H2Configuration
from h2.connection import ConnectionInputs, ConnectionState, H2Connection, H2ConnectionStateMachine
from h2.events import Event
from h2.exceptions import DenialOfServiceError
from h2.settings import SettingCodes, Settings
from hpack.hpack import Encoder
from hyperframe.frame import Frame, SettingsFrame

MAX_FRAME_SIZE = 131072
_DEFAULT_WINDOW = 65535  # of a connection, before it is raised

_KNOWN_SETTINGS = frozenset(SettingCodes)
# A frame of settings has room for thousands; nobody has more to say than there are settings.
MAX_SETTINGS_IN_FRAME = 64
# What our own headers may take in the memory of the encoder; a peer allows more, or less, as it likes.
MAX_ENCODER_TABLE = 4096
# Streams that were forgotten are a connection error, and those that are remembered cost memory.
_REMEMBERED_STREAMS = 4096


class TooManySettingsError(DenialOfServiceError):
    """A frame of settings with far more of them than there are."""


class _StateMachine(H2ConnectionStateMachine):
    _transitions = {  # noqa: RUF012  (h2's own attribute, which is not annotated)
        **H2ConnectionStateMachine._transitions,
        (ConnectionState.IDLE, ConnectionInputs.SEND_GOAWAY): (None, ConnectionState.IDLE),
        (ConnectionState.IDLE, ConnectionInputs.RECV_GOAWAY): (None, ConnectionState.IDLE),
        (ConnectionState.SERVER_OPEN, ConnectionInputs.SEND_GOAWAY): (None, ConnectionState.SERVER_OPEN),
        (ConnectionState.SERVER_OPEN, ConnectionInputs.RECV_GOAWAY): (None, ConnectionState.SERVER_OPEN),
    }


class _Encoder(Encoder):
    """A peer sets the size of the table, and error texts that it causes would fill it."""

    @property
    def header_table_size(self) -> int:
        return super().header_table_size

    @header_table_size.setter
    def header_table_size(self, value: int) -> None:
        Encoder.header_table_size.fset(self, min(value, MAX_ENCODER_TABLE))  # type: ignore[attr-defined]  # a property


class ServerConnection(H2Connection):
    """The server's side. The windows are how many bytes a peer may send that nobody has read yet.

    More streams than the limit that is told to the peer are not refused here: a peer may have opened them before it
    was told. Headers of more than twice their limit end the connection, since they cannot be decoded.
    """

    MAX_CLOSED_STREAMS = _REMEMBERED_STREAMS

    def __init__(
        self, *, max_concurrent_streams: int, stream_window: int, connection_window: int, max_header_size: int
    ) -> None:
        # Headers stay bytes and are not rewritten; the checks of what comes in stay on.
        super().__init__(
            H2Configuration(
                client_side=False,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        self.state_machine = _StateMachine()
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: max_concurrent_streams,
                SettingCodes.MAX_HEADER_LIST_SIZE: max_header_size,
                SettingCodes.INITIAL_WINDOW_SIZE: stream_window,
                SettingCodes.MAX_FRAME_SIZE: MAX_FRAME_SIZE,
            },
        )
        self.encoder = _Encoder()
        self.decoder.max_header_list_size = 2 * max_header_size
        self.max_inbound_frame_size = MAX_FRAME_SIZE
        self._raise_window_by = connection_window - _DEFAULT_WINDOW
        self._sweep_above = 64

    @property
    def open_inbound_streams(self) -> int:
        """0: h2 asks this for each new stream, to refuse too many. What it does on the way, forget the streams that
        have ended, takes a look at all of them; here that is done when half of them may have."""
        if len(self.streams) > self._sweep_above:
            self._sweep_above = 2 * super().open_inbound_streams + 64
        return 0

    def initiate_connection(self) -> None:
        super().initiate_connection()
        if self._raise_window_by > 0:
            self.increment_flow_control_window(self._raise_window_by)

    def clear_outbound_data_buffer(self) -> None:
        """h2 drops what is not sent yet when the peer's GOAWAY comes; its open streams still wait for it."""

    def _receive_settings_frame(self, frame: SettingsFrame) -> tuple[list[Frame], list[Event]]:
        """Settings that h2 does not know it would keep, 65536 at worst."""
        if len(frame.settings) > MAX_SETTINGS_IN_FRAME:
            raise TooManySettingsError(f"a frame of {len(frame.settings)} settings")
        known: dict[Any, int] = {key: value for key, value in frame.settings.items() if key in _KNOWN_SETTINGS}
        frame.settings = known
        return super()._receive_settings_frame(frame)
