"""Content codings: bounded inflation, and the choice among what a client accepts."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidArgument, PayloadTooLarge
from protocol.http.codec.compression import choose_encoding, compress, content_encoding, inflate
from protocol.http.errors import UnsupportedCompression

CODINGS = ("gzip", "deflate")


@pytest.mark.parametrize("coding", CODINGS)
@given(body=st.binary())
def test_round_trip(coding: str, body: bytes) -> None:
    assert inflate(memoryview(bytearray(compress([body], coding))), coding, len(body)) == body


def test_both_are_what_clients_send() -> None:
    """gzip's own wrapper, and zlib's for `deflate`."""
    assert bytes(inflate(gzip.compress(b"abc"), "gzip", 10)) == b"abc"
    assert bytes(inflate(zlib.compress(b"abc"), "deflate", 10)) == b"abc"
    assert gzip.decompress(compress([b"abc"], "gzip")) == b"abc"
    assert zlib.decompress(compress([b"abc"], "deflate")) == b"abc"


@pytest.mark.parametrize("coding", CODINGS)
def test_the_result_is_bounded(coding: str) -> None:
    """A small body that would become a large one is refused; one of just the limit is not."""
    body = compress([bytes(1 << 20)], coding)
    assert len(inflate(body, coding, 1 << 20)) == 1 << 20
    with pytest.raises(PayloadTooLarge, match="Decompressed data size exceeds the maximum allowed value of 1048575"):
        inflate(body, coding, (1 << 20) - 1)
    assert not inflate(compress([b""], coding), coding, 0)


@pytest.mark.parametrize("coding", CODINGS)
def test_damaged_bodies_are_refused(coding: str) -> None:
    body = compress([b"some text of some length"], coding)
    for damaged, text in (
        (body[:-1], "it ends too early"),
        (b"", "it ends too early"),
        (b"not compressed", "incorrect header check"),
        (body + b"xy", "2 bytes follow its end"),
        (body + body, "bytes follow its end"),
        (body[:-5] + b"\0\0\0\0\0", f"failed to decompress the request body as {coding}"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            inflate(damaged, coding, 1000)


@pytest.mark.parametrize(
    ("value", "coding"),
    [(b"", "identity"), (b"identity", "identity"), (b"gzip", "gzip"), (b" GZIP ", "gzip"), (b"deflate", "deflate")],
)
def test_codings_of_a_request(value: bytes, coding: str) -> None:
    assert content_encoding({b"content-encoding": value}) == coding
    assert content_encoding({}) == "identity"


@pytest.mark.parametrize("value", [b"br", b"gzip, gzip", b"x-gzip", b"\xff"])
def test_other_codings_are_refused(value: bytes) -> None:
    with pytest.raises(UnsupportedCompression, match=r"^Unsupported compression type$"):
        content_encoding({b"content-encoding": value})


@pytest.mark.parametrize(
    ("accept", "coding"),
    [
        (None, "identity"),
        (b"", "identity"),
        (b"gzip", "gzip"),
        (b"deflate", "deflate"),
        (b"gzip, deflate", "gzip"),
        (b"deflate, gzip", "deflate"),
        (b"gzip;q=0.5, deflate;q=0.8", "deflate"),
        (b"gzip;q=0.5, identity", "identity"),
        (b"identity, gzip", "identity"),
        (b"gzip;q=0", "identity"),
        (b"br, *", "identity"),
        (b"gzip;q=x, deflate;q=0.1", "deflate"),
        (b"GZIP ; Q=0.3", "gzip"),
        (b";;,,q=1, gzip", "gzip"),
        (b"gzip;q=nan", "identity"),
    ],
)
def test_the_choice_for_a_response(accept: bytes | None, coding: str) -> None:
    assert choose_encoding(accept) == coding
