"""One POST: its bytes, and answers whole, byte by byte, and cut short."""

from __future__ import annotations

import pytest

from protocol.outgoing.urls import UrlError, parse_url
from protocol.webhooks.exchange import Answer, Exchange


def exchanged(answer: bytes, size: int = 1 << 20) -> Answer:
    exchange = Exchange()
    exchange.request(parse_url("http://a/"), [], b"{}")
    for piece in [*(answer[place : place + size] for place in range(0, len(answer), size)), b""]:
        exchange.receive(piece)
        if (found := exchange.read()) is not None:
            return found
    raise AssertionError("it wants more")


def test_the_request() -> None:
    assert Exchange().request(parse_url("http://a:81/b?c"), [("webhook-id", "msg_1")], b"{}") == (
        b"POST /b?c HTTP/1.1\r\nHost: a:81\r\nUser-Agent: trioton\r\nContent-Length: 2\r\nConnection: close\r\n"
        b"webhook-id: msg_1\r\n\r\n{}"
    )


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", Answer(204)),
        (b"HTTP/1.0 200 OK\r\n\r\nwhatever it says", Answer(200)),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 Accepted\r\nContent-Length: 9\r\n\r\n", Answer(202)),
        (b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n", Answer(503, "7")),
        (b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n", Answer(302)),
    ],
)
def test_answers(answer: bytes, expected: Answer, size: int) -> None:
    assert exchanged(answer, size) == expected


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
)
def test_what_is_no_answer(answer: bytes) -> None:
    with pytest.raises(UrlError, match=r"without an answer|cut short, or none of HTTP"):
        exchanged(answer)
