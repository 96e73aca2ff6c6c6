"""One GET: whole, byte by byte, cut short, and with what nobody asked for."""

from __future__ import annotations

import pytest

from protocol.media.download import Download, Progress
from protocol.outgoing.urls import UrlError, parse_url

HEAD = b"HTTP/1.1 200 OK\r\n"


def download(answer: bytes, *, size: int = 1 << 20, most: int = 1000, ends: bool = True) -> Download:
    """What comes of an answer that arrives in pieces of so many bytes; the connection ends after it."""
    made = Download(most)
    made.request(parse_url("http://a/"))
    pieces = [answer[place : place + size] for place in range(0, len(answer), size)]
    for piece in [*pieces, b""] if ends else pieces:
        made.receive(piece)
        while (progress := made.read()) is Progress.HAS_MORE:
            pass
        if progress is Progress.DONE:
            return made
    raise AssertionError("it wants more")


def test_the_request() -> None:
    assert Download(1).request(parse_url("http://a:81/b?c")) == (
        b"GET /b?c HTTP/1.1\r\nHost: a:81\r\nUser-Agent: trioton\r\nAccept: image/*\r\nAccept-Encoding: identity\r\n"
        b"Connection: close\r\n\r\n"
    )


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"Content-Length: 5\r\n\r\nhello",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        HEAD + b"\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" + HEAD + b"Content-Length: 5\r\n\r\nhello",
    ],
)
def test_a_body_however_it_is_framed(answer: bytes, size: int) -> None:
    assert download(answer, size=size).body == b"hello"


def test_very_many_parts_are_read_a_few_at_a_time() -> None:
    made = Download(1000)
    made.request(parse_url("http://a/"))
    made.receive(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 500)
    assert made.read() is Progress.HAS_MORE
    assert 0 < len(made.body) < 100


def test_what_comes_is_told() -> None:
    sizes: list[int] = []
    made = Download(1000, sizes.append)
    made.request(parse_url("http://a/"))
    made.receive(HEAD + b"Content-Length: 5\r\n\r\nhello")
    assert made.read() is Progress.DONE
    assert sum(sizes) == 5


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect(status: int) -> None:
    answer = b"HTTP/1.1 %d Moved\r\nLocation: /b\r\nContent-Length: 9999999\r\n\r\n" % status
    assert download(answer, ends=False).redirect == "/b"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "cut short, or none of HTTP"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", "none of HTTP"),
        (HEAD + b"Content-Length: 5\r\n\r\nhell", "cut short"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhe", "cut short"),
        (HEAD + b"Content-Length: x\r\n\r\n", "none of HTTP"),
        (HEAD + b"X: " + b"a" * 100_000, "none of HTTP"),
        (HEAD + b"Content-Length: 1001\r\n\r\n", "more than 1000 bytes"),
        (HEAD + b"\r\n" + b"a" * 1001, "more than 1000 bytes"),
        (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\na", "compressed"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "status 404"),
        (b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", "status 302"),
        (b"HTTP/1.1 206 Partial\r\nContent-Length: 1\r\n\r\na", "status 206"),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "none of HTTP"),
    ],
)
def test_answers_that_are_not_wanted(answer: bytes, reason: str) -> None:
    with pytest.raises(UrlError) as caught:
        download(answer)
    assert reason in str(caught.value)
