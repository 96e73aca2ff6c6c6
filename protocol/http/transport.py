"""The ASGI side of one exchange: a request body read while it is counted, and a reply sent, also past an unread body.

hypercorn hands a body over through a short channel. A reply sent while nobody reads that channel would leave its
connection stuck, with the reader waiting for room and the writer for the reader; so whatever of a body is not read
here is drained here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope

from protocol.errors import InvalidArgument, ServerError
from protocol.http.errors import BodyTimeout
from protocol.http.exchange import Reply
from protocol.messages import Buffer

# Triton's bound on chunks, for bodies cut so small that framing costs more than content.
MAX_CHUNKS = 65536
MIN_CHUNK_SIZE = 64


class ClientGone(Exception):
    """The client closed its end before its request was whole: there is nobody to answer."""


class TooLong(Protocol):
    """Makes the error for a body of at least that many bytes."""

    def __call__(self, size: int, limit: int, /) -> ServerError: ...


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """How long a body may be, and what to say where it is longer."""

    maximum: int
    error: TooLong

    def check(self, size: int) -> None:
        if size > self.maximum:
            raise self.error(size, self.maximum)


def has_body(scope: HTTPScope, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a body may follow. HTTP/1 announces it, HTTP/2 need not, whatever the method."""
    if scope["http_version"].startswith("2"):
        return True
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


async def read_body(
    receive: ASGIReceiveCallable, headers: Mapping[bytes, bytes], limit: BodyLimit, *, idle_seconds: float
) -> Buffer:
    """The whole body. A body over the limit is refused as soon as that is known: by its declared length, else while
    it streams in.

    Raises:
        PayloadTooLarge: over the limit. InvalidArgument: too many tiny chunks. BodyTimeout: no byte for
        `idle_seconds`. ClientGone: the client left.
    """
    if declared := headers.get(b"content-length"):
        limit.check(int(declared))  # hypercorn lets only digits pass
    is_chunked = b"transfer-encoding" in headers
    body: bytes | bytearray = b""
    chunks = 0
    while True:
        with trio.move_on_after(idle_seconds) as waiting:
            message = await receive()
        if waiting.cancelled_caught:
            raise BodyTimeout(f"the request body is not complete and no byte came for {idle_seconds:g} seconds")
        if message["type"] != "http.request":
            raise ClientGone
        if part := message["body"]:
            if not body:
                body = part
            else:
                if isinstance(body, bytes):
                    body = bytearray(body)
                body += part
            limit.check(len(body))
            chunks += 1
            if is_chunked and chunks > MAX_CHUNKS and len(body) < chunks * MIN_CHUNK_SIZE:
                raise InvalidArgument(
                    f"Chunked request body exceeds maximum of {MAX_CHUNKS} non-empty chunks. "
                    f"Send fewer or larger HTTP chunks."
                )
        if not message["more_body"]:
            return body


async def send_reply(reply: Reply, send: ASGISendCallable) -> None:
    """Answer a request whose body has been read."""
    await _send_start(reply, send)
    await send({"type": "http.response.body", "body": reply.body, "more_body": False})


async def send_early_reply(
    reply: Reply, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable, *, linger: float
) -> None:
    """Answer a request whose body has not been read whole, and end its connection (HTTP/1) or stream (HTTP/2).

    The reply leaves at once. The rest of the body is then read and dropped, for `linger` seconds at most: closing
    earlier would make the kernel reset the connection and the client lose the reply that it has not yet read.
    """
    if not scope["http_version"].startswith("2"):
        reply = Reply(reply.status, (*reply.headers, (b"connection", b"close")), reply.body)
    await _send_start(reply, send)
    await send({"type": "http.response.body", "body": reply.body, "more_body": True})
    ended = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_drain, receive, ended)
        with trio.move_on_after(linger):
            await ended.wait()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        nursery.cancel_scope.cancel()


async def _send_start(reply: Reply, send: ASGISendCallable) -> None:
    headers = [*reply.headers, (b"content-length", b"%d" % len(reply.body))]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})


async def _drain(receive: ASGIReceiveCallable, ended: trio.Event) -> None:
    while True:
        message = await receive()
        if message["type"] != "http.request":
            ended.set()
            return
        if not message["more_body"]:
            ended.set()
