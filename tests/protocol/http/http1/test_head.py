"""Heads of HTTP/1 requests, beside h11 as another reader: what both take, they read alike."""

from __future__ import annotations

from contextlib import suppress

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.errors import ServerError
from protocol.http.http1.head import END_OF_HEAD, HTTP2_PREFACE, parse_head, upgrade_settings


def make(*lines: str, first: str = "POST /v2/models/m/infer HTTP/1.1") -> bytes:
    return "\r\n".join((first, "Host: x", *lines, "", "")).encode("latin-1")


def test_all_that_a_head_says() -> None:
    head = parse_head(make("X-A: 1", "x-a: 2", "Content-Length: 7 ", "Expect: 100-Continue", "Empty:"))
    assert head.method == "POST"
    assert head.target == b"/v2/models/m/infer"
    assert head.headers == {
        b"host": b"x",
        b"x-a": b"1",
        b"content-length": b"7",
        b"expect": b"100-Continue",
        b"empty": b"",
    }
    assert head.sent_headers[1:3] == ((b"X-A", b"1"), (b"x-a", b"2"))
    assert (head.content_length, head.is_chunked, head.has_body) == (7, False, True)
    assert (head.keeps_alive, head.expects_continue, head.is_http_1_0) == (True, True, False)


def test_the_path_is_without_its_query() -> None:
    head = parse_head(make(first="GET /v2?a=b?c HTTP/1.1"))
    assert (head.target, head.raw_path) == (b"/v2?a=b?c", b"/v2")


@pytest.mark.parametrize(
    ("first", "lines", "keeps"),
    [
        ("GET / HTTP/1.1", (), True),
        ("GET / HTTP/1.1", ("Connection: close",), False),
        ("GET / HTTP/1.1", ("Connection: x, CLOSE",), False),
        ("GET / HTTP/1.0", (), False),
        ("GET / HTTP/1.0", ("Connection: Keep-Alive",), True),
    ],
)
def test_whether_the_connection_stays(first: str, lines: tuple[str, ...], keeps: bool) -> None:
    assert parse_head(make(*lines, first=first)).keeps_alive is keeps


@pytest.mark.parametrize("framing", ["Content-Length: 5", "Transfer-Encoding: chunked"])
def test_an_upgrade_does_not_hide_a_body(framing: str) -> None:
    """llhttp takes what follows such a head for another protocol."""
    head = parse_head(make("Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAA", framing))
    assert head.has_body
    assert upgrade_settings(head) is None


@pytest.mark.parametrize(
    ("upgrade", "connection", "settings", "found"),
    [
        ("h2c", "Upgrade, HTTP2-Settings", "AAMAAABk", b"AAMAAABk"),
        ("H2C", "http2-settings,upgrade", "", b""),
        ("h2", "Upgrade, HTTP2-Settings", "AAMAAABk", None),
        ("h2c", "Upgrade", "AAMAAABk", None),
        ("h2c", "Upgrade, HTTP2-Settings", "AAMA", None),
        ("h2c", "Upgrade, HTTP2-Settings", "!", None),
    ],
)
def test_an_upgrade_that_is_asked_for_as_it_must_be(
    upgrade: str, connection: str, settings: str, found: bytes | None
) -> None:
    lines = (f"Upgrade: {upgrade}", f"Connection: {connection}", f"HTTP2-Settings: {settings}")
    assert upgrade_settings(parse_head(make(*lines))) == found


@pytest.mark.parametrize(
    ("first", "settings"),
    [
        ("GET /v2 HTTP/1.1", ()),
        ("GET /v2 HTTP/1.1", ("HTTP2-Settings: AAMAAABk", "http2-settings: AAMAAABk")),
        ("GET /v2 HTTP/1.0", ("HTTP2-Settings: AAMAAABk",)),
    ],
)
def test_an_upgrade_without_its_one_header_or_of_an_old_version_is_ignored(
    first: str, settings: tuple[str, ...]
) -> None:
    lines = ("Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", *settings)
    assert upgrade_settings(parse_head(make(*lines, first=first))) is None


def test_the_preface_of_http2_has_the_form_of_a_head() -> None:
    found = END_OF_HEAD.search(HTTP2_PREFACE)
    assert found is not None
    assert found.end() == len(HTTP2_PREFACE)


# What requests are made of, and what attacks on their framing are.
LINES = st.sampled_from(
    [
        "Content-Length: 5",
        "Content-Length: 05",
        "Content-Length: 5,5",
        "content-length:5",
        "Content-Length: \t5",
        "Content-Length : 5",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: CHUNKED",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding:\tchunked",
        "Transfer_Encoding: chunked",
        "Connection: close",
        "Connection: keep-alive, upgrade",
        "Upgrade: websocket",
        "Expect: 100-continue",
        "Host: y",
        "A: b",
        "A: b\r\n c",
        "A: b\rc",
        "A: b\nc: d",
        "A: \x7f",
        "A: \xe9",
        "A\x00: b",
        "A b: c",
        ": b",
        "no colon",
        "",
    ]
)
FIRST = st.sampled_from(
    [
        "GET / HTTP/1.1",
        "POST /a?b=%20 HTTP/1.1",
        "POST http://h/p HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "GET / HTTP/1.0",
        "GET / HTTP/2.0",
        "GET  / HTTP/1.1",
        "GET /\x01 HTTP/1.1",
        "GET /\xe9 HTTP/1.1",
        " GET / HTTP/1.1",
        "get / HTTP/1.1",
        "GET / http/1.1",
        "GET / HTTP/1.1 ",
        "GET /",
    ]
)


def read_with_h11(data: bytes) -> h11.Request | None:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError:
        return None
    assert event is h11.NEED_DATA or isinstance(event, h11.Request)
    return event if isinstance(event, h11.Request) else None


@given(FIRST, st.lists(LINES, max_size=4))
@example("GET / HTTP/1.1", ["Content-Length: 5", "Transfer-Encoding: chunked"])
def test_what_is_taken_is_read_as_h11_reads_it(first: str, lines: list[str]) -> None:
    """What goes through must not mean another thing to the proxy in front: strictness may differ, meaning not."""
    data = make(*lines, first=first)
    found = END_OF_HEAD.search(data)
    assert found is not None
    try:
        head = parse_head(data[: found.end()])
    except ServerError:
        return
    other = read_with_h11(data)
    if other is None:
        assert any(line.startswith("A: \x7f") for line in lines) or "\xe9" in first
        return
    assert (other.method.decode(), other.target, other.http_version == b"1.0") == (
        head.method,
        head.target,
        head.is_http_1_0,
    )
    lowered = [(name, value.lower()) for name, value in other.headers.raw_items()]  # h11 lowers some of the values
    assert [(name, value.lower()) for name, value in head.sent_headers] == lowered
    lengths = {value for name, value in other.headers if name == b"content-length"}
    assert {head.content_length} == ({int(length) for length in lengths} or {0})
    assert head.is_chunked == any(name == b"transfer-encoding" for name, _ in other.headers)


@given(st.binary(max_size=200))
def test_bytes_of_any_kind(data: bytes) -> None:
    """Are a head, or refused with a sentence."""
    with suppress(ServerError):
        assert parse_head(data + b"\r\n\r\n").method.isalpha()


def test_a_head_that_comes_again_is_not_parsed_again_unless_it_is_long() -> None:
    """Also after another one: a client's requests have bodies of different lengths."""

    def head(length: int, padding: int = 0) -> bytes:
        return b"POST /x HTTP/1.1\r\nHost: a\r\nX-Pad: %b\r\nContent-Length: %d\r\n\r\n" % (b"p" * padding, length)

    first, other = parse_head(head(7)), parse_head(head(8))
    assert (first.content_length, other.content_length) == (7, 8)
    assert parse_head(head(7)) is first
    assert parse_head(head(7, padding=2000)) is not parse_head(head(7, padding=2000))


@pytest.mark.parametrize("text", ["0" * 5000, "9" * 5000, "0" * 21, "1" * 21])
def test_a_length_of_too_many_digits_is_refused(text: str) -> None:
    """Python refuses to read the longest, by an error that is not ours."""
    with pytest.raises(ServerError):
        parse_head(make(f"Content-Length: {text}"))


def test_a_length_of_twenty_digits_is_read() -> None:
    assert parse_head(make("Content-Length: " + "7".zfill(20))).content_length == 7
