"""Serialisation of HTTP/1 response heads. Pure; `last` is what differs from one response to the next: header lines, and
the empty line that ends a head."""

from __future__ import annotations

from functools import lru_cache

from protocol.http.reply import Headers

_STATUS_LINES = {
    status: b"HTTP/1.1 %d %b\r\n" % (status, phrase)
    for status, phrase in (
        (200, b"OK"),
        (202, b"Accepted"),
        (400, b"Bad Request"),
        (401, b"Unauthorized"),
        (403, b"Forbidden"),
        (404, b"Not Found"),
        (405, b"Method Not Allowed"),
        (408, b"Request Timeout"),
        (409, b"Conflict"),
        (413, b"Content Too Large"),
        (422, b"Unprocessable Content"),
        (431, b"Request Header Fields Too Large"),
        (500, b"Internal Server Error"),
        (501, b"Not Implemented"),
        (503, b"Service Unavailable"),
        (504, b"Gateway Timeout"),
        (507, b"Insufficient Storage"),
    )
}


def last_lines(request_id: bytes, date: bytes) -> bytes:
    """The end of a head; `date` is the header's line, and the empty line."""
    return b"x-request-id: %b\r\n%b" % (request_id, date) if request_id else date


def response_head(
    status: int,
    headers: Headers,
    last: bytes,
    *,
    length: int | None = None,
    closes: bool,
    is_chunked: bool = False,
    is_http_1_0: bool = False,
) -> bytes:
    lines = [_first_lines(status, headers)]
    if length is not None:
        lines.append(b"content-length: %d\r\n" % length)
    if is_chunked:
        lines.append(b"transfer-encoding: chunked\r\n")
    if closes:
        lines.append(b"connection: close\r\n")
    elif is_http_1_0:  # where a connection that stays is an exception
        lines.append(b"connection: keep-alive\r\n")
    lines.append(last)
    return b"".join(lines)


@lru_cache(maxsize=256)
def usual_head(status: int, headers: Headers, length: int) -> bytes:
    """That of a response of known length on a connection that stays, up to the value of `x-request-id`."""
    return _first_lines(status, headers) + b"content-length: %d\r\nx-request-id: " % length


# A server's responses have few different headers.
@lru_cache(maxsize=256)
def _first_lines(status: int, headers: Headers) -> bytes:
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    return line + b"".join([b"%b: %b\r\n" % header for header in headers])
