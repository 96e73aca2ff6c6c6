"""The table from error classes to HTTP status codes, and the errors that only this edge raises.

Where Triton answers a client's malformed JSON with 500, this edge answers 400 with the same text: such mistakes are
`InvalidArgument` from the start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from protocol.errors import (
    DeadlineExceeded,
    Forbidden,
    InsufficientStorage,
    Internal,
    InvalidArgument,
    NotFound,
    PayloadTooLarge,
    QuotaExceeded,
    ServerError,
    Unauthenticated,
    Unavailable,
    Unsupported,
    told,
)
from protocol.http.reply import JSON_CONTENT, Headers, Reply
from protocol.jobs.links import LinkExpired
from protocol.jobs.store import IdempotencyMismatch, RequestUnderWay
from protocol.quotas.fields import Fields

FIRST_ERROR = 400

ErrorForm: TypeAlias = Callable[[ServerError], Reply]
"""How errors are written: `error_reply`, or that of another interface."""


class MethodNotAllowed(InvalidArgument):
    """The path exists, but not for this method; `allowed` are those it takes."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        super().__init__("Method Not Allowed")
        self.allowed = allowed


class Conflict(InvalidArgument):
    """What is asked for is not in the state for that; it may be later."""

    retry_after = 1.0


class UnsupportedCompression(Unsupported):
    def __init__(self) -> None:
        super().__init__("Unsupported compression type")


class LimitError(ServerError):
    """A limit of this edge has refused the request; `limit` is the name under which that is counted."""

    limit: str


class BodyTooLarge(LimitError, PayloadTooLarge):
    def __init__(self, message: str, limit: str) -> None:
        super().__init__(message)
        self.limit = limit


class BodyTimeout(LimitError, InvalidArgument):
    """The client began a body and stopped sending it, or sends it too slowly."""

    limit = "body_timeout"


class HeaderTimeout(LimitError, InvalidArgument):
    """The client began a request and did not end its headers in time."""

    limit = "header_timeout"

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the request's headers are not complete after {seconds:g} seconds. "
            f"Use --http-header-timeout to allow more."
        )


class HeadersTooLarge(LimitError, InvalidArgument):
    limit = "max_header_size"

    def __init__(self, maximum: int) -> None:
        super().__init__(
            f"the request's line and headers exceed the maximum allowed size of {maximum} bytes. "
            f"Use --http-max-header-size to increase the limit."
        )


class TooManyStreams(LimitError, Unavailable):
    """The limit is the client's own: its other requests are in the way."""

    limit = "max_concurrent_streams"

    def __init__(self, maximum: int) -> None:
        super().__init__(
            f"{maximum} requests are in flight on this connection, which is the maximum. "
            f"Use --http-max-concurrent-streams to increase the limit."
        )


class TooManyConnections(LimitError, Unavailable):
    limit = "max_connections"

    def __init__(self, maximum: int) -> None:
        super().__init__(
            f"{maximum} connections are open, which is the maximum. Use --http-max-connections to increase the limit."
        )


class TooManyRelayed(LimitError, Unavailable):
    limit = "max_relayed_requests"

    def __init__(self, maximum: int) -> None:
        super().__init__(
            f"an edge process has the server's core answer {maximum} requests, which is the maximum. "
            f"Use --http-max-connections to increase the limit."
        )


class TooManyUploads(LimitError, Unavailable):
    limit = "max_relayed_requests"

    def __init__(self, maximum: int) -> None:
        super().__init__(
            f"an edge process passes the bodies of {maximum} requests on to the server's core, which is the maximum. "
            f"Use --http-max-connections to increase the limit."
        )


STATUS: dict[type[ServerError], int] = {
    ServerError: 400,
    Internal: 500,
    NotFound: 404,
    Unavailable: 503,
    Unsupported: 501,
    DeadlineExceeded: 504,
    PayloadTooLarge: 413,
    InsufficientStorage: 507,
    Unauthenticated: 401,
    Forbidden: 403,
    MethodNotAllowed: 405,
    Conflict: 409,
    RequestUnderWay: 409,
    IdempotencyMismatch: 422,
    LinkExpired: 410,
    BodyTimeout: 408,
    HeaderTimeout: 408,
    HeadersTooLarge: 431,
    TooManyStreams: 429,
    QuotaExceeded: 429,
}


def status_of(error: ServerError) -> int:
    """The status of the error's nearest class in the table; 400 for all others."""
    return next(STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)


def with_members(reply: Reply, members: Mapping[str, object]) -> bytes:
    """The content of an error's reply, with these beside the error."""
    return msgspec.json.encode({**msgspec.json.decode(reply.content), **members})


def name_reply(reply: Reply, request_id: bytes) -> None:
    """Say which request it answers: by a header, and where it is an error in JSON by a member."""
    reply.request_id = request_id
    if reply.status >= FIRST_ERROR and JSON_CONTENT[0] in reply.headers and not reply.tail:
        reply.body = with_members(reply, {"request_id": request_id.decode()})


def encoded_fields(fields: Fields) -> Headers:
    """Header fields as a reply has them."""
    return tuple([(name.encode(), value.encode()) for name, value in fields])


def error_reply(error: ServerError) -> Reply:
    """The error reply. The error loses its traceback (`protocol.errors.told`)."""
    told(error)
    # A lone surrogate (from a file name, from a model's own text) has no UTF-8 form.
    text = error.message.encode("utf-8", "replace").decode()
    headers: Headers = JSON_CONTENT
    if isinstance(error, MethodNotAllowed):
        headers = (*headers, (b"allow", ", ".join(error.allowed).encode()))
    elif isinstance(error, Unauthenticated):
        headers = (*headers, (b"www-authenticate", b"Bearer"))
    elif isinstance(error, UnsupportedCompression):
        headers = (*headers, (b"accept-encoding", b"gzip, deflate"))
    elif isinstance(error, QuotaExceeded):
        headers = (*headers, *encoded_fields(error.fields))
    if error.retry_after is not None:
        headers = (*headers, (b"retry-after", b"%d" % math.ceil(error.retry_after)))
    return Reply(status_of(error), headers, msgspec.json.encode({"error": text}))
