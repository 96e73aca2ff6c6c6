"""h2's connection, set up for a gRPC server, with graceful GOAWAY.

h2 takes a GOAWAY in either direction for the end of the connection. It is not: it says that no more streams are
opened, and those that are open finish (RFC 9113, section 6.8). Draining needs that.
"""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import ConnectionInputs, ConnectionState, H2Connection, H2ConnectionStateMachine
from h2.settings import SettingCodes, Settings

MAX_FRAME_SIZE = 131072
MAX_HEADER_LIST_SIZE = 65536
_DEFAULT_WINDOW = 65535  # of a connection, before it is raised


class _StateMachine(H2ConnectionStateMachine):
    _transitions = {  # noqa: RUF012  (h2's own attribute, which is not annotated)
        **H2ConnectionStateMachine._transitions,
        (ConnectionState.IDLE, ConnectionInputs.SEND_GOAWAY): (None, ConnectionState.IDLE),
        (ConnectionState.IDLE, ConnectionInputs.RECV_GOAWAY): (None, ConnectionState.IDLE),
        (ConnectionState.SERVER_OPEN, ConnectionInputs.SEND_GOAWAY): (None, ConnectionState.SERVER_OPEN),
        (ConnectionState.SERVER_OPEN, ConnectionInputs.RECV_GOAWAY): (None, ConnectionState.SERVER_OPEN),
    }


class ServerConnection(H2Connection):
    """The server's side. The windows are how many bytes a peer may send that nobody has read yet."""

    def __init__(self, *, max_concurrent_streams: int, stream_window: int, connection_window: int) -> None:
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
                SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST_SIZE,
                SettingCodes.INITIAL_WINDOW_SIZE: stream_window,
                SettingCodes.MAX_FRAME_SIZE: MAX_FRAME_SIZE,
            },
        )
        self.decoder.max_header_list_size = MAX_HEADER_LIST_SIZE
        self.max_inbound_frame_size = MAX_FRAME_SIZE
        self._raise_window_by = connection_window - _DEFAULT_WINDOW

    def initiate_connection(self) -> None:
        super().initiate_connection()
        if self._raise_window_by > 0:
            self.increment_flow_control_window(self._raise_window_by)

    def clear_outbound_data_buffer(self) -> None:
        """h2 drops what is not sent yet when the peer's GOAWAY comes; its open streams still wait for it."""
