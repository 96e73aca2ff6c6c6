"""An HTTP/2 client for tests, thin over h2: it can do what well-behaved ones cannot."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import h2.config
import h2.connection
import h2.events
import trio
from hyperframe.frame import Frame


class Http2Client:
    """A connection with prior knowledge. `events` holds those that nobody has waited for."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        config = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()
        self.events: list[h2.events.Event] = []
        self.is_closed = False
        self._raw = b""

    def headers(self, method: str, path: str, extra: Iterable[tuple[str, str]] = ()) -> list[tuple[str, str]]:
        return [(":method", method), (":path", path), (":authority", "x"), (":scheme", "http"), *extra]

    def send(self, method: str, path: str, body: bytes | None = b"", extra: Iterable[tuple[str, str]] = ()) -> int:
        """Make a request's frames; `body` None leaves it open."""
        stream_id = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream_id, self.headers(method, path, extra), end_stream=body == b"")
        if body:
            self.h2.send_data(stream_id, body, end_stream=True)
        return stream_id

    async def start(
        self, method: str, path: str, body: bytes | None = b"", extra: Iterable[tuple[str, str]] = ()
    ) -> int:
        stream_id = self.send(method, path, body, extra)
        await self.flush()
        return stream_id

    async def flush(self) -> None:
        await self.stream.send_all(self.h2.data_to_send())

    async def more(self) -> bool:
        """Take in what comes next; false when the server has closed the connection."""
        if self.is_closed:
            return False
        try:
            data = bytes(await self.stream.receive_some())
        except trio.BrokenResourceError:
            data = b""
        if not data:
            self.is_closed = True
            return False
        self.events += self.h2.receive_data(data)
        if (reply := self.h2.data_to_send()) and not self.is_closed:
            with suppress(trio.BrokenResourceError):  # what has come is still to be read
                await self.stream.send_all(reply)
        return True

    async def wait_for(self, kind: type[h2.events.Event], stream_id: int | None = None) -> Any:
        """The next event of a kind, of a stream or of any."""
        while True:
            for event in self.events:
                if isinstance(event, kind) and stream_id in (None, getattr(event, "stream_id", None)):
                    self.events.remove(event)
                    return event
            assert await self.more(), "the server closed the connection"

    async def answer(self, stream_id: int) -> tuple[int, bytes]:
        """Status and body of a response, flow control minded."""
        response = await self.wait_for(h2.events.ResponseReceived, stream_id)
        status = int(dict(response.headers)[b":status"])
        body = b""
        while True:
            for event in list(self.events):
                if getattr(event, "stream_id", None) != stream_id:
                    continue
                self.events.remove(event)
                if isinstance(event, h2.events.DataReceived):
                    body += event.data
                    if event.flow_controlled_length:
                        self.h2.acknowledge_received_data(event.flow_controlled_length, stream_id)
                elif isinstance(event, h2.events.StreamEnded):
                    await self.flush()
                    return status, body
                else:
                    assert not isinstance(event, h2.events.StreamReset), "the server reset the stream"
            await self.flush()
            assert await self.more(), "the server closed the connection"

    async def get(self, path: str) -> tuple[int, bytes]:
        return await self.answer(await self.start("GET", path))

    async def read_to_end(self) -> None:
        while await self.more():
            pass

    async def raw_frame(self, kind: type[Frame]) -> Any:
        """The next frame of a kind, read past h2, for which a GOAWAY is the end. From then on h2 reads no more."""
        with trio.fail_after(60):
            while True:
                await self._fill(9)
                frame, length = Frame.parse_frame_header(memoryview(self._raw[:9]))
                await self._fill(9 + length)
                frame.parse_body(memoryview(self._raw[9 : 9 + length]))
                self._raw = self._raw[9 + length :]
                if isinstance(frame, kind):
                    return frame

    async def _fill(self, size: int) -> None:
        while len(self._raw) < size:
            data = bytes(await self.stream.receive_some())
            assert data, "the server closed the connection"
            self._raw += data
