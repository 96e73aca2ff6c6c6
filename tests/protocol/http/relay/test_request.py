"""Heads of requests on their way to the core's edge."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from protocol.errors import InvalidArgument
from protocol.http.relay.request import request_head


def exchange(*headers: tuple[bytes, bytes], path: bytes = b"/v2", query: bytes = b"") -> Any:
    return SimpleNamespace(method="POST", raw_path=path, query=query, sent_headers=headers)


def test_headers_of_the_connection_stay_behind_and_all_others_go() -> None:
    sent = exchange(
        (b"Host", b"a"), (b"Connection", b"close"), (b"X", b"1"), (b"x", b"2"), (b"TE", b"trailers"),
        (b"Content-Length", b"7"), (b"Transfer-Encoding", b"chunked"), (b"Upgrade", b"h2c"),
        (b"expect", b"100-continue"),
        query=b"q=1",
    )  # fmt: skip
    assert request_head(sent, b"content-length: 7\r\n", expects_continue=False) == (
        b"POST /v2?q=1 HTTP/1.1\r\nHost: a\r\nX: 1\r\nx: 2\r\ncontent-length: 7\r\n\r\n"
    )
    assert b"expect: 100-continue\r\n" in request_head(sent, b"", expects_continue=True)


def test_a_request_without_a_host_gets_an_empty_one() -> None:
    assert request_head(exchange(), b"", expects_continue=False) == b"POST /v2 HTTP/1.1\r\nhost: \r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        exchange((b"x", b"a\r\nauthorization: b")),
        exchange((b"x", b"a\nb: c")),
        exchange((b"x\r\ny", b"a")),
        exchange((b"x", b"a\0")),
        exchange(path=b"/v2 HTTP/1.1\r\nx: y\r\n\r\nGET /"),
    ],
    ids=range(5),
)
def test_no_header_makes_another_one(sent: Any) -> None:
    with pytest.raises(InvalidArgument, match="line end"):
        request_head(sent, b"", expects_continue=False)
