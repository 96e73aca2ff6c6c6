"""The ASGI side of one exchange: a request body read while it is counted, and a reply sent, also past an unread body.

hypercorn hands a body over through a short channel. A reply sent while nobody reads that channel would leave its
connection stuck, with the reader waiting for room and the writer for the reader; so whatever of a body is not read
here is drained here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope

from protocol.errors import ServerError
from protocol.http.errors import BodyTimeout
from protocol.http.exchange import Headers, Reply
from protocol.messages import Buffer
from protocol.request_memory import RequestShare

# Bytes in a second that a body must come with, once the time for a pause is over.
MIN_BODY_RATE = 1024
# The key of an exchange's `state` that holds the headers as the client sent them.
SENT_HEADERS = "sent_headers"


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


def first_headers(scope: HTTPScope) -> dict[bytes, bytes]:
    """The headers by their lower-case names; of one that comes several times the first value, for every reader."""
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name, value)
    return headers


def header_text(headers: Mapping[bytes, bytes], name: str) -> str | None:
    """A header as text: each byte a character, so that nothing is lost."""
    value = headers.get(name.encode("latin-1", "replace"))
    return None if value is None else value.decode("latin-1")


def has_body(scope: HTTPScope, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a body may follow. HTTP/1 announces it, HTTP/2 need not, whatever the method."""
    if scope["http_version"].startswith("2"):
        return True
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


async def read_body(
    receive: ASGIReceiveCallable,
    headers: Mapping[bytes, bytes],
    limit: BodyLimit,
    share: RequestShare,
    *,
    pause_seconds: float,
) -> Buffer:
    """The whole body. A body over the limit is refused as soon as that is known: by its declared length, else while
    it streams in. It may pause for `pause_seconds` at a time, and in all no longer than that and what
    `MIN_BODY_RATE` allows for its bytes. Its bytes count in `share`.

    Raises:
        ServerError: over the limit, as `limit.error` makes it, or over what `share` may hold.
        BodyTimeout: too slow.
        ClientGone: the client left.
    """
    if declared := headers.get(b"content-length"):
        limit.check(int(declared))  # the transport lets only digits pass
    body: bytes | bytearray = b""
    started = trio.current_time()
    while True:
        with trio.move_on_at(pause_seconds + min(trio.current_time(), started + len(body) / MIN_BODY_RATE)) as waiting:
            message = await receive()
        if waiting.cancelled_caught:
            raise BodyTimeout(
                f"the request body is not complete: {len(body)} bytes came within "
                f"{trio.current_time() - started:.0f} seconds. Use --http-body-timeout to allow longer pauses."
            )
        if message["type"] != "http.request":
            raise ClientGone
        if part := message["body"]:
            share.take(len(part))
            if not body:
                body = part
            else:
                if isinstance(body, bytes):
                    body = bytearray(body)
                body += part
            limit.check(len(body))
        if not message["more_body"]:
            return body


def sent_headers(scope: HTTPScope) -> Iterable[tuple[bytes, bytes]]:
    """All headers, their names in the letter case of the client where the connection keeps it (see `http1`)."""
    headers: Iterable[tuple[bytes, bytes]] = scope["state"].get(SENT_HEADERS) or scope["headers"]
    return headers


class StreamedReply:
    """Implements `exchange.BodyWriter`: a response of unknown length."""

    __slots__ = ("_send", "has_started")

    def __init__(self, send: ASGISendCallable) -> None:
        self._send = send
        self.has_started = False

    async def start(self, status: int, headers: Headers) -> None:
        self.has_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def send(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


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
