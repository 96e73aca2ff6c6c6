"""A receiver of webhooks on loopback, over HTTP or HTTPS."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import h11
import trio


@dataclass(frozen=True)
class Received:
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """Answers each request with the bytes that `answer` gives for it, and closes; with none, never.

    Attributes:
        received: the requests so far.
        came: set by each; a test may put another in its place.
        gone: set when a client has left a connection that was not answered.
    """

    answer: Callable[[Received], bytes | None] = lambda _: b"HTTP/1.1 204 No Content\r\n\r\n"
    tls: ssl.SSLContext | None = None
    port: int = 0
    received: list[Received] = field(default_factory=list)
    came: trio.Event = field(default_factory=trio.Event)
    gone: trio.Event = field(default_factory=trio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?a=b"

    async def run(self, *, task_status: trio.TaskStatus[Receiver] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(trio.serve_tcp, self._serve, 0, host="127.0.0.1"))
            self.port = listener.socket.getsockname()[1]
            task_status.started(self)

    async def wait_for(self, count: int) -> None:
        while len(self.received) < count:
            self.came = trio.Event()
            await self.came.wait()

    async def _serve(self, plain: trio.SocketStream) -> None:
        stream: trio.abc.Stream = plain
        if self.tls is not None:
            stream = trio.SSLStream(plain, self.tls, server_side=True, https_compatible=True)
        try:
            async with stream:
                received = await _read(stream)
                self.received.append(received)
                self.came.set()
                answer = self.answer(received)
                if answer is not None:
                    await stream.send_all(answer)
                else:
                    await stream.receive_some(1)
                    self.gone.set()
        except trio.BrokenResourceError:
            self.gone.set()


async def _read(stream: trio.abc.Stream) -> Received:
    connection = h11.Connection(h11.SERVER)
    request, body = None, b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(bytes(await stream.receive_some(4096)))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            assert request is not None
            headers = {name.decode(): value.decode() for name, value in request.headers}
            return Received(request.target.decode(), headers, body)
        else:
            raise AssertionError(f"no request: {event}")
