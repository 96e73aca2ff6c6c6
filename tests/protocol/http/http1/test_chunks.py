"""Bodies in chunks: whole, cut anywhere, and beside h11 as another reader."""

from __future__ import annotations

from collections.abc import Iterable

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidArgument
from protocol.http.http1.chunks import MAX_CHUNKS, ChunkDecoder, LineTooLong

LONGEST = 200


def decode(pieces: Iterable[bytes]) -> tuple[bytes | None, bytes]:
    """The body, None where it is not complete; and what lies behind it."""
    decoder = ChunkDecoder(LONGEST)
    counted = sum(decoder.feed(piece) for piece in pieces)
    body = b"".join(decoder.parts)
    assert counted == len(body)
    return (body if decoder.is_complete else None), decoder.rest


def encode(chunks: Iterable[bytes], extension: bytes = b"", trailers: bytes = b"") -> bytes:
    sizes = b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    return sizes + b"0" + extension + b"\r\n" + trailers + b"\r\n"


@given(
    st.lists(st.binary(min_size=1, max_size=300), max_size=6),
    st.sampled_from([b"", b";a", b';a="b;c"', b" ;a"]),
    st.sampled_from([b"", b"A: b\r\n", b"A: b\r\nC:\r\n"]),
    st.binary(max_size=10),
    st.lists(st.integers(0, 2500), max_size=20),
)
def test_bodies_cut_anywhere(
    chunks: list[bytes], extension: bytes, trailers: bytes, behind: bytes, cuts: list[int]
) -> None:
    data = encode(chunks, extension, trailers)
    places = sorted(min(cut, len(data)) for cut in cuts)
    pieces = [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]
    pieces[-1] += behind
    assert decode(pieces) == (b"".join(chunks), behind)


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=3), st.data())
def test_a_body_cut_off_is_not_complete(chunks: list[bytes], data: st.DataObject) -> None:
    whole = encode(chunks)
    end = data.draw(st.integers(0, len(whole) - 1))
    assert decode([whole[:end]])[0] is None


def read_with_h11(data: bytes) -> tuple[bytes, bytes] | None:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + data)
    body = b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return body, connection.trailing_data[0]
            elif event is h11.NEED_DATA:
                return None
    except h11.RemoteProtocolError:
        return None


TOKENS = st.sampled_from(
    [b"0", b"1", b"a", b"A", b"x", b";", b"\r\n", b"\n", b"\r", b" ", b"-", b"+", b"0x", b"A: b", b"\x00", b"fffffffff"]
)


@given(st.lists(TOKENS, max_size=16))
def test_what_is_taken_is_read_as_h11_reads_it(tokens: list[bytes]) -> None:
    data = b"".join(tokens) + b"\r\n0\r\n\r\n"
    try:
        body, behind = decode([data])
    except (InvalidArgument, LineTooLong):
        return
    if body is not None:
        assert read_with_h11(data) == (body, behind)


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"zz\r\n", "the size of a chunk is no hexadecimal number"),
        (b"-1\r\n", "the size of a chunk is no hexadecimal number"),
        (b"0x5\r\n", "the size of a chunk is no hexadecimal number"),
        (b"\r\n", "the size of a chunk is no hexadecimal number"),
        (b"f" * 17 + b"\r\n", "the size of a chunk is no hexadecimal number"),
        (b"1;\x00\r\n", "the size of a chunk is no hexadecimal number"),
        (b"2\r\nabXX", "a chunk is longer than its size says"),
        (b"2\n", "a line of a chunked body does not end with CR LF"),
        (b"0\r\nbad trailer\r\n", "a trailer is no header line"),
        (b"0\r\n folded\r\n", "a trailer is no header line"),
    ],
)
def test_what_are_no_chunks(sent: bytes, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        decode([sent])
    with pytest.raises(InvalidArgument, match=text):
        decode([bytes([byte]) for byte in sent])


@pytest.mark.parametrize(
    "sent",
    [
        b"5;" + b"x" * (LONGEST + 1),
        b"5;" + b"x" * (LONGEST + 1) + b"\r\n",
        b"0\r\n" + b"A: b\r\n" * LONGEST,
    ],
)
def test_framing_that_does_not_end(sent: bytes) -> None:
    with pytest.raises(LineTooLong):
        decode([sent])


@pytest.mark.slow
def test_more_chunks_than_triton_takes() -> None:
    assert decode([encode([b" "] * MAX_CHUNKS)]) == (b" " * MAX_CHUNKS, b"")
    with pytest.raises(InvalidArgument, match="exceeds maximum of 65536 non-empty chunks"):
        decode([encode([b" "] * (MAX_CHUNKS + 1))])
