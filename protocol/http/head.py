"""Request head: target, headers and body length of an HTTP request, independent of the version of HTTP. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.errors import InvalidArgument, ServerError

_MOST_DIGITS = 20  # of a length; the largest number of 64 bits has as many


@dataclass(frozen=True, slots=True)
class Head:
    """The request line and the headers.

    Attributes:
        target: as the client sent it, mostly a path with its query; `raw_path` is it without the query.
        headers: the first value of each header by its lower-case name.
        sent_headers: all headers as they came.
        content_length: bytes of the body; 0 where there is none, or its length is not known.
        is_chunked: whether the body comes in chunks.
        keeps_alive: whether the client wants the connection to stay.
        expects_continue: whether the client waits for `100 Continue` before it sends the body.
        is_http_1_0: the client knows no chunks, and closes unless told otherwise.
    """

    method: str
    target: bytes
    raw_path: bytes
    headers: Mapping[bytes, bytes]
    sent_headers: tuple[tuple[bytes, bytes], ...]
    content_length: int
    is_chunked: bool
    keeps_alive: bool
    expects_continue: bool
    is_http_1_0: bool

    @property
    def has_body(self) -> bool:
        return self.is_chunked or self.content_length > 0


def content_length(text: bytes) -> int:
    """The value of a `Content-Length` header. More digits than any length has are refused, also where all are zeros:
    to read a number takes time that grows with the square of its digits, and Python itself refuses the longest.

    Raises:
        InvalidArgument: it is none.
    """
    if not text.isdigit() or len(text) > _MOST_DIGITS:
        raise malformed(f"'Content-Length' has to be a number of at most {_MOST_DIGITS} digits")
    return int(text)


def malformed(reason: str) -> ServerError:
    return InvalidArgument(f"malformed HTTP request: {reason}")
