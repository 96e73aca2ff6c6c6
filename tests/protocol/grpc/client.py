"""A gRPC client made of h2 only, which can also do what no decent client does."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import h2.events
import trio
from h2.config import H2Configuration
from h2.connection import ConnectionInputs, ConnectionState, H2Connection, H2ConnectionStateMachine

REQUEST_HEADERS = {
    ":method": "POST",
    ":scheme": "http",
    ":path": "/test.Test/Echo",
    ":authority": "localhost",
    "content-type": "application/grpc",
    "te": "trailers",
}


class _StateMachine(H2ConnectionStateMachine):
    """Reads on after a GOAWAY, as clients do while their calls finish."""

    _transitions = {  # noqa: RUF012
        **H2ConnectionStateMachine._transitions,
        (ConnectionState.IDLE, ConnectionInputs.RECV_GOAWAY): (None, ConnectionState.IDLE),
        (ConnectionState.CLIENT_OPEN, ConnectionInputs.RECV_GOAWAY): (None, ConnectionState.CLIENT_OPEN),
        (ConnectionState.CLIENT_OPEN, ConnectionInputs.SEND_GOAWAY): (None, ConnectionState.CLIENT_OPEN),
    }


def framed(message: bytes, flag: int = 0) -> bytes:
    return bytes([flag]) + len(message).to_bytes(4, "big") + message


def unframed(data: bytes) -> list[bytes]:
    messages = []
    while data:
        length = int.from_bytes(data[1:5], "big")
        messages.append(data[5 : 5 + length])
        assert len(messages[-1]) == length
        data = data[5 + length :]
    return messages


@dataclass
class Response:
    """What came for one stream so far. `reset` is the code of a RST_STREAM."""

    headers: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    has_ended: bool = False
    reset: int | None = None

    @property
    def messages(self) -> list[bytes]:
        return unframed(self.data)

    @property
    def status(self) -> int:
        return int(self.headers["grpc-status"])

    @property
    def message(self) -> str:
        return unquote(self.headers.get("grpc-message", ""))


class Client:
    """One connection. Bytes of responses are acknowledged as they come, unless `acknowledges` is False."""

    def __init__(self, transport: trio.abc.Stream, *, acknowledges: bool = True) -> None:
        self.transport = transport
        self.acknowledges = acknowledges
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.state_machine = _StateMachine()
        self.responses: dict[int, Response] = {}
        self.goaways: list[h2.events.ConnectionTerminated] = []
        self.pings = 0
        self.is_closed = False
        self.reads = 0

    async def start(self) -> None:
        self.h2.initiate_connection()
        await self.flush()

    async def flush(self) -> None:
        data = self.h2.data_to_send()
        if data:
            await self.transport.send_all(data)

    async def open(
        self, path: str, headers: dict[str, str] | None = None, *, end: bool = False, holds_back: bool = False
    ) -> int:
        """Send the headers of a call, or hold them back for what is sent next; gives the stream's number. A header of
        "" is left out."""
        stream_id = self.h2.get_next_available_stream_id()
        self.responses[stream_id] = Response()
        fields = {**REQUEST_HEADERS, ":path": path, **(headers or {})}
        self.h2.send_headers(stream_id, [(key, value) for key, value in fields.items() if value], end_stream=end)
        if not holds_back:
            await self.flush()
        return stream_id

    async def send(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        """Send data, as much at a time as the server lets; reads meanwhile."""
        view = memoryview(data)
        while True:
            size = min(self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size, len(view))
            if size or not view:
                is_last = size == len(view)
                self.h2.send_data(stream_id, view[:size], end_stream=end and is_last)
                view = view[size:]
                await self.flush()
                if is_last:
                    return
            else:
                await self.read()

    async def start_call(self, path: str, *messages: bytes, headers: dict[str, str] | None = None) -> int:
        """A whole request in one write."""
        stream_id = await self.open(path, headers, end=not messages, holds_back=bool(messages))
        if messages:
            await self.send(stream_id, b"".join(map(framed, messages)), end=True)
        return stream_id

    async def call(self, path: str, *messages: bytes, headers: dict[str, str] | None = None) -> Response:
        return await self.finish(await self.start_call(path, *messages, headers=headers))

    async def finish(self, stream_id: int) -> Response:
        """The response, when it has ended or was reset."""
        response = self.responses[stream_id]
        while not response.has_ended and response.reset is None:
            assert not self.is_closed, f"the server closed the connection: {self.goaways}"
            await self.read()
        return response

    async def read(self) -> None:
        """Wait for bytes and take note of what they say."""
        try:
            data = await self.transport.receive_some(65536)
        except trio.BrokenResourceError:
            data = b""
        self.reads += 1
        if not data:
            self.is_closed = True
            return
        for event in self.h2.receive_data(data):
            self.note(event)
        with contextlib.suppress(trio.BrokenResourceError):  # the server has closed; what it sent is read to the end
            await self.flush()

    async def read_to_end(self) -> None:
        while not self.is_closed:
            await self.read()

    def note(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                headers: Sequence[Any] = event.headers
                self.responses[event.stream_id].headers.update(headers)
            case h2.events.DataReceived():
                self.responses[event.stream_id].data += event.data
                if self.acknowledges:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                self.responses[event.stream_id].has_ended = True
            case h2.events.StreamReset():
                self.responses[event.stream_id].reset = int(event.error_code)
            case h2.events.ConnectionTerminated():
                self.goaways.append(event)
            case h2.events.PingAckReceived():
                self.pings += 1
