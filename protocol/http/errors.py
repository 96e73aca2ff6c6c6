"""The one table from kinds of error to HTTP status codes, and the errors that only this edge knows.

Where Triton answers a client's malformed JSON with 500, this edge answers 400 with the same text: such mistakes are
`InvalidArgument` from the start.
"""

from __future__ import annotations

import msgspec

from protocol.errors import (
    DeadlineExceeded,
    Forbidden,
    Internal,
    InvalidArgument,
    NotFound,
    PayloadTooLarge,
    ServerError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from protocol.http.exchange import JSON_CONTENT, Headers, Reply


class MethodNotAllowed(InvalidArgument):
    """The path exists, but not for this method; `allowed` are those it takes."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        super().__init__("Method Not Allowed")
        self.allowed = allowed


class UnsupportedCompression(Unsupported):
    def __init__(self) -> None:
        super().__init__("Unsupported compression type")


class BodyTimeout(InvalidArgument):
    """The client began a body and stopped sending it."""


STATUS: dict[type[ServerError], int] = {
    ServerError: 400,
    Internal: 500,
    NotFound: 404,
    Unavailable: 503,
    Unsupported: 501,
    DeadlineExceeded: 504,
    PayloadTooLarge: 413,
    Unauthenticated: 401,
    Forbidden: 403,
    MethodNotAllowed: 405,
    BodyTimeout: 408,
}


def status_of(error: ServerError) -> int:
    """The status of the error's nearest class in the table; 400 for all others."""
    return next(STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)


def error_reply(error: ServerError) -> Reply:
    # A lone surrogate (from a file name, from a model's own text) has no UTF-8 form.
    text = error.message.encode("utf-8", "replace").decode()
    headers: Headers = JSON_CONTENT
    if isinstance(error, MethodNotAllowed):
        headers = (*headers, (b"allow", ", ".join(error.allowed).encode()))
    elif isinstance(error, Unauthenticated):
        headers = (*headers, (b"www-authenticate", b"Bearer"))
    elif isinstance(error, UnsupportedCompression):
        headers = (*headers, (b"accept-encoding", b"gzip, deflate"))
    return Reply(status_of(error), headers, msgspec.json.encode({"error": text}))
