"""One call of a replica over HTTP/1.1, on a connection of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import h11
import trio

from protocol.messages import Buffer

_MOST_HEAD_BYTES = 64 << 10
_MOST_BODY_BYTES = 256 << 20
_READ_BYTES = 1 << 16

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Answer:
    """`headers` by their lower-case names."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def is_ok(self) -> bool:
        return self.status == 200


class CallFailed(Exception):
    """There was no answer, or none of HTTP; the text says what happened."""


async def call(
    host: str, port: int, method: str, target: str, *, headers: Headers = (), body: Buffer = b"", seconds: float
) -> Answer:
    """Send a request, and read its whole answer, within so many seconds.

    Raises:
        CallFailed: it cannot be reached, ends the connection, or takes too long.
    """
    with trio.move_on_after(seconds):
        try:
            async with await trio.open_tcp_stream(host, port) as stream:
                return await _exchange(stream, f"{host}:{port}", method, target, headers, body)
        except (OSError, trio.BrokenResourceError) as error:
            raise CallFailed(f"{host}:{port} cannot be reached: {error.__cause__ or error}") from None
        except h11.RemoteProtocolError as error:
            raise CallFailed(f"{host}:{port} has ended the connection, or speaks no HTTP: {error!s:.200}") from None
    raise CallFailed(f"{host}:{port} has not answered within {seconds:g} s")


async def _exchange(
    stream: trio.SocketStream, authority: str, method: str, target: str, headers: Headers, body: Buffer
) -> Answer:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_HEAD_BYTES)
    own = [(b"host", authority.encode()), (b"connection", b"close"), (b"content-length", b"%d" % len(body))]
    parts = (
        h11.Request(method=method, target=target, headers=[*own, *headers]),
        h11.Data(bytes(body)),
        h11.EndOfMessage(),
    )
    await stream.send_all(b"".join([connection.send(part) or b"" for part in parts]))
    answer = Answer(0, {}, b"")
    content = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(_READ_BYTES))
        elif isinstance(event, h11.Response):
            answer = Answer(event.status_code, dict(event.headers), b"")
        elif isinstance(event, h11.Data):
            content += event.data
            if len(content) > _MOST_BODY_BYTES:
                raise CallFailed(f"{authority} answers more than {_MOST_BODY_BYTES} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return Answer(answer.status, answer.headers, bytes(content))
        elif isinstance(event, h11.ConnectionClosed):
            raise CallFailed(f"{authority} has ended the connection without an answer")
