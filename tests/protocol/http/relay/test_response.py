"""Responses of the core's edge, whole, byte by byte, and wrong."""

from __future__ import annotations

import pytest

from protocol.http.relay.response import NoResponse, ResponseHead, ResponseReader

SIZED = b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\nContent-Length: 5\r\nx-request-id: r1\r\ndate: now\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 202 Accepted\r\ntransfer-encoding: chunked\r\nx: y\r\n\r\n5\r\nhello\r\n006\r\n world\r\n0\r\n\r\n"
CLOSING = b"HTTP/1.1 404 \r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
WHOLE = {
    SIZED: (ResponseHead(200, ((b"content-type", b"a/b"),), 5, closes=False, request_id=b"r1"), b"hello"),
    CHUNKED: (ResponseHead(202, ((b"x", b"y"),), None, closes=False, request_id=b""), b"hello world"),
    CLOSING: (ResponseHead(404, (), 0, closes=True, request_id=b""), b""),
}


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("data", WHOLE)
def test_responses_in_pieces_of_any_size(data: bytes, size: int) -> None:
    reader = ResponseReader()
    content: list[bytes] = []
    for start in range(0, len(data), size):
        assert not reader.has_ended
        assert not reader.receive(data[start : start + size])
        content += reader.take()
    assert (reader.head, b"".join(content)) == WHOLE[data]
    assert reader.has_ended


def test_a_hundred_asks_for_the_body() -> None:
    reader = ResponseReader()
    assert reader.receive(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert reader.head is None
    assert not reader.receive(SIZED)
    assert reader.take() == [b"hello"]


def test_a_head_has_no_content_whatever_length_it_tells() -> None:
    reader = ResponseReader(is_to_head=True)
    reader.receive(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")
    assert reader.has_ended
    assert reader.head is not None
    assert reader.head.length == 5


def test_more_chunks_than_a_request_may_have() -> None:
    reader = ResponseReader()
    reader.receive(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(200):
        reader.receive(b"1\r\nx\r\n" * 500)
    assert len(b"".join(reader.take())) == 100_000


@pytest.mark.parametrize(
    "data", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", SIZED + b"more", CLOSING + b"x"], ids=range(5)
)
def test_what_is_no_response(data: bytes) -> None:
    with pytest.raises(NoResponse):
        ResponseReader().receive(data)


def test_a_response_that_is_cut_off() -> None:
    reader = ResponseReader()
    reader.receive(SIZED[:-1])
    with pytest.raises(NoResponse):
        reader.receive(b"")


def test_content_that_is_read_elsewhere() -> None:
    reader = ResponseReader()
    reader.receive(SIZED[:-4])
    assert (reader.take(), reader.left) == ([b"h"], 4)
    reader.note_received(4)
    assert reader.has_ended
