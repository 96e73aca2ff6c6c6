"""The head of a relayed request, as it goes to the core's edge. Pure."""

from __future__ import annotations

from protocol.errors import InvalidArgument
from protocol.http.exchange import Exchange
from protocol.http.head import malformed

# Of one connection, or of what the relay frames anew.
_HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"transfer-encoding", b"upgrade"),
        *(b"http2-settings", b"content-length", b"expect"),
    )
)
_EXPECTS = b"expect: 100-continue\r\n"


def request_head(
    exchange: Exchange, framing: bytes, *, expects_continue: bool = False, is_decoded: bool = False
) -> bytes:
    """`framing` is the header that says how long the body is, with its line end, or nothing; the body `is_decoded`
    where it is not in the coding any more that the client has sent it in.

    Raises:
        InvalidArgument: HTTP/2 can carry it, and HTTP/1 cannot.
    """
    target = exchange.raw_path + (b"?" + exchange.query if exchange.query else b"")
    lines = [exchange.method.encode("latin-1"), b" ", target, b" HTTP/1.1\r\n"]
    has_host = False
    count = 1
    for name, value in exchange.sent_headers:
        lower = name.lower()
        if lower in _HOP_BY_HOP or (is_decoded and lower == b"content-encoding"):
            continue
        has_host = has_host or lower == b"host"
        lines += (name, b": ", value, b"\r\n")
        count += 1
    if not has_host:  # HTTP/1.0 and HTTP/2 need none
        lines.append(b"host: \r\n")
        count += 1
    head = b"".join(lines)
    if head.count(b"\n") != count or head.count(b"\r") != count or b"\0" in head:
        raise _malformed()
    return b"".join((head, framing, _EXPECTS if expects_continue else b"", b"\r\n"))


def _malformed() -> InvalidArgument:
    error = malformed("a line end within its path or a header")
    assert isinstance(error, InvalidArgument)
    return error
