"""Hosts on loopback that media are fetched from."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import trio


def answer(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Length: {len(body)}",
        *(f"{name}: {text}" for name, text in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass
class Host:
    """Answers GET by path, with the bytes that it is given, and closes. A path that it does not know is never answered.

    Attributes:
        asked: the paths so far.
        gone: set when a client has left a connection that was not answered.
    """

    answers: Mapping[str, bytes]
    tls: ssl.SSLContext | None = None
    port: int = 0
    asked: list[str] = field(default_factory=list)
    came: trio.Event = field(default_factory=trio.Event)
    gone: trio.Event = field(default_factory=trio.Event)

    async def run(self, *, task_status: trio.TaskStatus[Host] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            (listener,) = await nursery.start(partial(trio.serve_tcp, self._serve, 0, host="127.0.0.1"))
            self.port = listener.socket.getsockname()[1]
            task_status.started(self)

    async def _serve(self, plain: trio.SocketStream) -> None:
        stream: trio.abc.Stream = plain
        if self.tls is not None:
            stream = trio.SSLStream(plain, self.tls, server_side=True, https_compatible=True)
        try:
            async with stream:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += await stream.receive_some(4096)
                self.asked.append(head.split()[1].decode())
                self.came.set()
                found = self.answers.get(self.asked[-1])
                if found is None:
                    await stream.receive_some(1)
                    self.gone.set()
                else:
                    await stream.send_all(found)
        except trio.BrokenResourceError:
            self.gone.set()
