"""h2's server connection with two changes that a long-lived server needs: GOAWAY without haste, and less to remember.

h2 takes a GOAWAY in either direction for the end of the connection. It is not: it says that no more streams are opened,
and those that are open finish (RFC 9113, 6.8). h2 also keeps every stream that was ever closed, up to 65536.
"""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import ConnectionInputs, ConnectionState, H2Connection, H2ConnectionStateMachine

HIGHEST_STREAM_ID = 2**31 - 1


class _StateMachine(H2ConnectionStateMachine):
    _transitions = {  # noqa: RUF012  (h2's own attribute, which is not annotated)
        **H2ConnectionStateMachine._transitions,
        (ConnectionState.IDLE, ConnectionInputs.SEND_GOAWAY): (None, ConnectionState.IDLE),
        (ConnectionState.IDLE, ConnectionInputs.RECV_GOAWAY): (None, ConnectionState.IDLE),
        (ConnectionState.SERVER_OPEN, ConnectionInputs.SEND_GOAWAY): (None, ConnectionState.SERVER_OPEN),
        (ConnectionState.SERVER_OPEN, ConnectionInputs.RECV_GOAWAY): (None, ConnectionState.SERVER_OPEN),
    }


class PatientConnection(H2Connection):
    """After `close_connection` and after the peer's GOAWAY the open streams go on; whoever owns the connection refuses
    new ones, and closes it when the last stream has ended."""

    # Of a stream forgotten it is no longer known how it ended: frames that come late for it are then an error.
    MAX_CLOSED_STREAMS = 1024

    def __init__(self, config: H2Configuration) -> None:
        super().__init__(config)
        self.state_machine = _StateMachine()

    def clear_outbound_data_buffer(self) -> None:
        """h2 drops what is not sent yet when the peer's GOAWAY comes; its open streams still wait for it."""
