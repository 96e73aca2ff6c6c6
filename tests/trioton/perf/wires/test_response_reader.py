"""HTTP/1 responses: whole, byte by byte, in chunks, up to the end of the connection, and what is none."""

from __future__ import annotations

import pytest

from trioton.perf.wires.response_reader import ResponseError, ResponseReader

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
UNTIL_END = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nhello"


def reading(*, keeps_body: bool = True) -> ResponseReader:
    reader = ResponseReader()
    reader.begin(keeps_body=keeps_body)
    return reader


@pytest.mark.parametrize("data", [PLAIN, CHUNKED, PLAIN.replace(b"Content-Length", b"content-length")])
def test_a_response_is_read_whole_and_byte_by_byte(data: bytes) -> None:
    whole, pieces = reading(), reading()
    assert whole.feed(data)
    assert [pieces.feed(data[index : index + 1]) for index in range(len(data))] == [False] * (len(data) - 1) + [True]
    for reader in (whole, pieces):
        assert (reader.status, reader.body, reader.closes) == (200, b"hello", False)


def test_several_follow_each_other() -> None:
    reader = ResponseReader()
    for data in (PLAIN, CHUNKED, PLAIN):
        reader.begin(keeps_body=True)
        assert reader.feed(data)
        assert reader.body == b"hello"


def test_a_body_may_end_with_the_connection() -> None:
    reader = reading()
    assert not reader.feed(UNTIL_END)
    assert reader.feed_end()
    assert (reader.body, reader.closes) == (b"hello", True)


@pytest.mark.parametrize("data", [b"", PLAIN[:10], PLAIN[:-1], CHUNKED[:-1]])
def test_what_is_cut_short_is_not_whole(data: bytes) -> None:
    reader = reading()
    assert not data or not reader.feed(data)
    assert not reader.feed_end()


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        PLAIN + b"HTTP/1.1 ",
        b"x" * 70_000,
    ],
)
def test_what_is_no_response(data: bytes) -> None:
    with pytest.raises(ResponseError):
        reading().feed(data)


def test_a_good_body_is_dropped_unless_it_is_wanted_and_one_of_an_error_is_kept() -> None:
    reader = reading(keeps_body=False)
    assert reader.feed(PLAIN)
    assert reader.body == b""
    reader.begin()
    assert reader.feed(PLAIN.replace(b"200 OK", b"503 No"))
    assert (reader.status, reader.body) == (503, b"hello")


def test_the_body_of_an_error_is_kept_in_part() -> None:
    reader = reading(keeps_body=False)
    reader.feed(b"HTTP/1.1 500 No\r\nContent-Length: 10000000\r\n\r\n")
    for _ in range(100):
        reader.feed(bytes(100_000))
    assert len(reader.body) <= 200_000


def test_a_connection_that_closes_is_noticed() -> None:
    reader = reading()
    assert reader.feed(PLAIN.replace(b"Content-Type: text/plain", b"Connection: close"))
    assert reader.closes
