"""h2's connection, set up for a gRPC server: its windows and limits."""

from __future__ import annotations

from h2.config import H2Configuration
from h2.settings import SettingCodes, Settings

from protocol.http2 import PatientConnection

MAX_FRAME_SIZE = 131072
_DEFAULT_WINDOW = 65535  # of a connection, before it is raised

# Streams that were forgotten are a connection error, and those that are remembered cost memory.
_REMEMBERED_STREAMS = 4096


class ServerConnection(PatientConnection):
    """The server's side. The windows are how many bytes a peer may send that nobody has read yet.

    Headers of more than twice their limit end the connection, since they cannot be decoded.
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
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: max_concurrent_streams,
                SettingCodes.MAX_HEADER_LIST_SIZE: max_header_size,
                SettingCodes.INITIAL_WINDOW_SIZE: stream_window,
                SettingCodes.MAX_FRAME_SIZE: MAX_FRAME_SIZE,
            },
        )
        self.decoder.max_header_list_size = 2 * max_header_size
        self.max_inbound_frame_size = MAX_FRAME_SIZE
        self._raise_window_by = connection_window - _DEFAULT_WINDOW

    def initiate_connection(self) -> None:
        super().initiate_connection()
        if self._raise_window_by > 0:
            self.increment_flow_control_window(self._raise_window_by)
