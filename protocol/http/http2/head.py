"""HTTP/2 request and response headers of the REST edge: interpretation of request headers, encoding of response blocks.

Source: RFC 9113, section 8; RFC 7541, section 6.2.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from protocol.errors import ServerError
from protocol.http.date import DateHeader
from protocol.http.errors import HeadersTooLarge, MethodNotAllowed
from protocol.http.head import Head, malformed
from protocol.http.reply import Headers as ReplyHeaders
from protocol.http2.request_headers import Headers
from protocol.http2.response_headers import ResponseHeaders, literal_request_id

# What an entry of a header list counts beside its name and value (RFC 9113, 6.5.2).
_ENTRY_OVERHEAD = 32
# More digits are never converted.
_MAX_DIGITS = 20
# Names of responses whose values are few.
_INDEXED = frozenset((b":status", b"content-type", b"content-encoding"))
# A literal without indexing whose name is an entry of the static table: 28 is content-length, 33 is date.
_LENGTH_NAME, _DATE_NAME = b"\x0f\x0d", b"\x0f\x12"


@dataclass(frozen=True, slots=True)
class StreamHead:
    """What the headers of a request say.

    Attributes:
        head: in the form that HTTP/1 has it; its `content_length` is 0 also where the length is not declared.
        declared: bytes that the body is said to have; None where nothing is said.
        refusal: the answer to every request with these headers.
        is_malformed: it is no request; its stream is reset.
    """

    head: Head
    declared: int | None = None
    refusal: ServerError | None = None
    is_malformed: bool = False


def no_head(reason: str) -> StreamHead:
    """The head for headers that are no request's, for that reason."""
    head = Head("", b"", b"", {}, (), 0, is_chunked=False, keeps_alive=True, expects_continue=False, is_http_1_0=False)
    return StreamHead(head, refusal=malformed(reason))


def read_head(fields: Headers, max_header_size: int) -> StreamHead:
    """Never raises: an invalid request is reported on its stream."""
    pseudo = {name: value for name, value in fields if name.startswith(b":")}
    method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    sent = [(name, value) for name, value in fields if not name.startswith(b":")]
    if (authority := pseudo.get(b":authority")) is not None:
        sent = [(b"host", authority), *(each for each in sent if each[0] != b"host")]
    headers: dict[bytes, bytes] = {}
    for name, value in sent:
        headers.setdefault(name, value)
    head = Head(
        method.decode("latin-1"),
        path,
        path.partition(b"?")[0],
        headers,
        tuple(sent),
        0,
        is_chunked=False,
        keeps_alive=True,
        expects_continue=headers.get(b"expect", b"").lower() == b"100-continue",
        is_http_1_0=False,
    )
    if sum(len(name) + len(value) + _ENTRY_OVERHEAD for name, value in fields) > max_header_size:
        return StreamHead(head, refusal=HeadersTooLarge(max_header_size))
    if method == b"CONNECT":
        return StreamHead(head, refusal=MethodNotAllowed(()))
    if not path or not path.isascii() or not method.isascii():
        return StreamHead(head, is_malformed=True)
    return _with_length(head, headers, {value for name, value in sent if name == b"content-length"})


def _with_length(head: Head, headers: Mapping[bytes, bytes], lengths: set[bytes]) -> StreamHead:
    if not lengths:
        return StreamHead(head)
    text = headers[b"content-length"]
    if len(lengths) > 1 or not text.isdigit():
        return StreamHead(head, is_malformed=True)
    if len(text) > _MAX_DIGITS:
        return StreamHead(head, refusal=malformed(f"a 'Content-Length' of {len(text)} digits"))
    length = int(text)
    return StreamHead(replace(head, content_length=length), length)


class ResponseBlocks:
    """The header blocks of one connection's responses. What changes from one to the next, their lengths, the
    request's id and the date, leaves HPACK's table as it is, and so the rest of a block can be sent again."""

    __slots__ = ("_date", "encoder")

    def __init__(self, date: DateHeader) -> None:
        self._date = date
        self.encoder = ResponseHeaders(_INDEXED, keeps_any=True)

    def block(self, status: int, headers: ReplyHeaders, length: int | None, request_id: bytes = b"") -> bytes:
        first = self.encoder.encode(((b":status", b"%d" % status), *headers))
        if length is None:
            return b"".join((first, _DATE_NAME, self._date.packed()))
        named = literal_request_id(request_id) if request_id else b""
        return b"".join((first, _packed_length(length), named, _DATE_NAME, self._date.packed()))


@lru_cache(maxsize=512)
def _packed_length(length: int) -> bytes:
    digits = b"%d" % length
    return _LENGTH_NAME + bytes((len(digits),)) + digits
