"""Parses the head of an HTTP/1 request with llhttp (`httptools`). Pure.

Beside what llhttp refuses (names and values that are none, lengths that two servers in a row may read differently),
this refuses what it lets pass: transfer codings in HTTP/1.0, codings other than `chunked`, several hosts or none
(RFC 9112, 3.2 and 6.1). Each refusal is an error of this edge, with a sentence for the client.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from functools import lru_cache

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from protocol.errors import ServerError, Unsupported
from protocol.http.head import Head, content_length, malformed

# The end of a head, also where its lines end as they must not: llhttp then says so.
END_OF_HEAD = re.compile(rb"\n\r?\n")
# What a client that knows that it talks HTTP/2 begins with (RFC 9113, 3.4); it has the form of a head.
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\n"

# Of a head that is kept: by its connection, and by all together. Its lines count more than its bytes.
_LARGEST_KEPT = 8192
_LARGEST_SHARED = 1024
_MOST_LINES_KEPT = 64
_SETTING_SIZE = 6  # bytes of one entry in a SETTINGS frame


def upgrade_settings(head: Head) -> bytes | None:
    """The one `HTTP2-Settings` of a request of HTTP/1.1 that asks for an upgrade to HTTP/2 as it must (RFC 7540, 3.2;
    RFC 9110, 7.8) and has no body; None for all other requests, whose upgrades are ignored."""
    headers = head.headers
    if head.has_body or head.is_http_1_0 or headers.get(b"upgrade", b"").lower() != b"h2c":
        return None
    options = {option.strip() for option in headers.get(b"connection", b"").lower().split(b",")}
    if not {b"upgrade", b"http2-settings"} <= options:
        return None
    texts = [value for name, value in head.sent_headers if name.lower() == b"http2-settings"]
    if len(texts) != 1:
        return None
    text = texts[0]
    try:
        settings = base64.b64decode(text + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        return None
    return text if len(settings) % _SETTING_SIZE == 0 else None


def is_worth_keeping(data: bytes) -> bool:
    """Whether a connection may remember this head, and what follows from it, until another one comes. It costs as much
    memory as long as its client is silent."""
    return len(data) <= _LARGEST_KEPT and data.count(b"\n") <= _MOST_LINES_KEPT


def parse_head(data: bytes) -> Head:
    """The head that `data` is, from the first byte of its line to the empty line at its end.

    Raises:
        InvalidArgument: it is none; Unsupported: its body comes in a coding that this server does not know.
    """
    return _known(data) if is_shared(data) else _parse(data)


def is_shared(data: bytes) -> bool:
    """Whether a server may remember this head for all connections, among the last few."""
    return len(data) <= _LARGEST_SHARED and data.count(b"\n") <= _MOST_LINES_KEPT


def _parse(data: bytes) -> Head:
    line, _, _ = data.partition(b"\r\n")
    is_http_1_0 = line.endswith(b" HTTP/1.0")
    lines = _Lines()
    parser = lines.parser = HttpRequestParser(lines)
    try:
        parser.feed_data(data)
    except HttpParserUpgrade:
        pass  # a wish, which is for the server to grant
    except HttpParserError as error:
        raise _refusal(str(error)) from None
    finally:
        lines.parser = None  # it knows the lines: a cycle
    # llhttp knows other protocols, too, and takes several spaces for one.
    if not lines.is_complete or not (is_http_1_0 or line.endswith(b" HTTP/1.1")) or line.count(b" ") != 2:
        raise malformed("no request line of HTTP/1.0 or HTTP/1.1")
    headers: dict[bytes, bytes] = {}
    for name, value in lines.headers:
        headers.setdefault(name.lower(), value)
    _check_host(lines, is_http_1_0)
    is_chunked = b"transfer-encoding" in headers
    if is_chunked:
        _check_coding(lines, headers, is_http_1_0)
    return Head(
        parser.get_method().decode("ascii"),
        lines.target,
        lines.target.partition(b"?")[0],
        headers,
        tuple(lines.headers),
        0 if is_chunked else content_length(headers.get(b"content-length", b"0")),
        is_chunked,
        keeps_alive=lines.keeps_alive,
        expects_continue=not is_http_1_0 and headers.get(b"expect", b"").lower() == b"100-continue",
        is_http_1_0=is_http_1_0,
    )


# A client's heads differ in the length of the body, mostly, and many lengths come again.
_known = lru_cache(maxsize=512)(_parse)


class _Lines:
    """What llhttp calls back with."""

    __slots__ = ("headers", "is_complete", "keeps_alive", "parser", "target")

    def __init__(self) -> None:
        self.parser: HttpRequestParser | None = None
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_complete = False
        self.keeps_alive = False

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self.is_complete = True
        assert self.parser is not None
        self.keeps_alive = self.parser.should_keep_alive()  # it forgets at the end of the message

    def count(self, wanted: bytes) -> int:
        return sum(name.lower() == wanted for name, _ in self.headers)


def _refusal(reason: str) -> ServerError:
    if "Transfer-Encoding` header value" in reason or reason == "Request has invalid `Transfer-Encoding`":
        return _unknown_coding()
    return malformed(reason)


def _unknown_coding() -> ServerError:
    return Unsupported("of Transfer-Encoding only 'chunked' is known; send the body chunked, or with its length")


def _check_host(lines: _Lines, is_http_1_0: bool) -> None:
    count = lines.count(b"host")
    if count == 0 and not is_http_1_0:
        raise malformed("no 'Host' header")
    if count > 1:
        raise malformed("several 'Host' headers")


def _check_coding(lines: _Lines, headers: Mapping[bytes, bytes], is_http_1_0: bool) -> None:
    if is_http_1_0:
        raise malformed("'Transfer-Encoding' in HTTP/1.0, so that its length is not certain")
    if headers[b"transfer-encoding"].lower() != b"chunked" or lines.count(b"transfer-encoding") > 1:
        raise _unknown_coding()
