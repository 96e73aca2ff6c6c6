"""A blocking HTTP/2 client that says itself how much it reads: its windows open when it is told so, and not before."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

import h2.connection
import h2.events
from h2.config import H2Configuration
from h2.settings import SettingCodes

from tests.e2e.server_process import TIMEOUT_SECONDS

_WIDEST = 2**31 - 1 - 65535


@dataclass(slots=True)
class Response:
    """What has come on one stream: headers and trailers together, and the body."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    has_ended: bool = False
    reset_code: int | None = None


class Http2Client:
    """With `window` 0 the server may send headers and nothing else. Closed at the end of a `with` block.

    Attributes:
        responses: by stream, in the order of the requests.
        last_stream: what the server's GOAWAY says, once one has come.
    """

    def __init__(self, address: str, *, window: int) -> None:
        host, _, port = address.rpartition(":")
        self._authority = address
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_SECONDS)
        self._h2 = h2.connection.H2Connection(H2Configuration(header_encoding="utf-8"))
        self._h2.local_settings[SettingCodes.INITIAL_WINDOW_SIZE] = window
        self._h2.local_settings.acknowledge()
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_WIDEST)
        self.responses: dict[int, Response] = {}
        self.last_stream: int | None = None

    def __enter__(self) -> Http2Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def post(
        self,
        path: str,
        body: bytes,
        *,
        is_grpc: bool = False,
        has_more: bool = False,
        more: Sequence[tuple[str, str]] = (),
    ) -> int:
        """Send a request, or its beginning where it `has_more`; returns its stream."""
        stream = self._h2.get_next_available_stream_id()
        headers = [(":method", "POST"), (":scheme", "http"), (":authority", self._authority), (":path", path)]
        if is_grpc:
            headers += [("te", "trailers"), ("content-type", "application/grpc")]
        else:
            headers += [("content-length", str(len(body)))]
        self._h2.send_headers(stream, [*headers, *more])
        self._h2.send_data(stream, body, end_stream=not has_more)
        self.responses[stream] = Response()
        self._flush()
        return stream

    def reset(self, stream: int) -> None:
        """Give a request up."""
        self._h2.reset_stream(stream)
        self._flush()

    def widen(self, stream: int) -> None:
        """Let the server send all of a response."""
        if not self.responses[stream].has_ended:
            self._h2.increment_flow_control_window(_WIDEST, stream)
            self._flush()

    def read_until(self, condition: Callable[[], bool]) -> None:
        """Take what comes until the condition holds, or the server closes the connection."""
        while not condition():
            data = self._socket.recv(1 << 20)
            if not data:
                return
            for event in self._h2.receive_data(data):
                self._note(event)
            self._flush()

    def ping(self) -> None:
        """Returns when the server has taken all that was sent before."""
        self._answered = False
        self._h2.ping(b"12345678")
        self._flush()
        self.read_until(lambda: self._answered)

    def _note(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                self.responses[event.stream_id].headers.update({str(name): str(value) for name, value in event.headers})
            case h2.events.DataReceived():
                self.responses[event.stream_id].body += event.data
            case h2.events.StreamEnded():
                self.responses[event.stream_id].has_ended = True
            case h2.events.StreamReset():
                self.responses[event.stream_id].reset_code = event.error_code
            case h2.events.PingAckReceived():
                self._answered = True
            case h2.events.ConnectionTerminated():
                self.last_stream = event.last_stream_id

    def _flush(self) -> None:
        self._socket.sendall(self._h2.data_to_send())
