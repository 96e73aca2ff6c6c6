"""Compressed messages: read within a limit, made where the client reads them and where it pays."""

from __future__ import annotations

import gzip
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidArgument, PayloadTooLarge, Unsupported
from protocol.grpc.call.compression import check_encoding, choose_encoding, compress, decompress

LIMIT = 100_000


@pytest.mark.parametrize("encoding", ["identity", "gzip", "deflate"])
def test_encodings_that_are_taken(encoding: str) -> None:
    check_encoding(encoding)


@pytest.mark.parametrize("encoding", ["snappy", "", "GZIP"])
def test_encodings_that_are_not(encoding: str) -> None:
    with pytest.raises(Unsupported, match="expected one of: identity, gzip, deflate"):
        check_encoding(encoding)


@given(st.binary(max_size=2000), st.sampled_from(["gzip", "deflate"]))
def test_decompression(message: bytes, encoding: str) -> None:
    compressed = gzip.compress(message) if encoding == "gzip" else zlib.compress(message)
    assert decompress(memoryview(compressed), encoding, LIMIT) == message


PACKED = gzip.compress(b"hello", mtime=0)  # the same for every process of a run
NOT_DECOMPRESSED: list[tuple[bytes, str, type[Exception], str]] = [
    (PACKED, "identity", InvalidArgument, "grpc-encoding is 'identity'"),
    (PACKED, "deflate", InvalidArgument, "failed to decompress the message as deflate"),
    (b"no gzip", "gzip", InvalidArgument, "failed to decompress the message as gzip"),
    (b"", "gzip", InvalidArgument, "it ends too early"),
    (PACKED[:-1], "gzip", InvalidArgument, "it ends too early"),
    (PACKED + b"ab", "gzip", InvalidArgument, "2 bytes follow its end"),
    (gzip.compress(bytes(LIMIT + 1)), "gzip", PayloadTooLarge, f"limit of {LIMIT} bytes"),
]


@pytest.mark.parametrize(("data", "encoding", "error", "message"), NOT_DECOMPRESSED)
def test_what_cannot_be_decompressed(data: bytes, encoding: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        decompress(memoryview(data), encoding, LIMIT)


def test_a_message_that_inflates_to_the_limit_is_taken() -> None:
    assert decompress(memoryview(zlib.compress(bytes(LIMIT))), "deflate", LIMIT) == bytes(LIMIT)


def test_a_limit_of_nothing_is_one() -> None:
    """0 would mean none to zlib."""
    assert not decompress(memoryview(gzip.compress(b"")), "gzip", 0)
    with pytest.raises(PayloadTooLarge):
        decompress(memoryview(gzip.compress(b"a")), "gzip", 0)


@given(st.binary(max_size=5000), st.sampled_from(["gzip", "deflate"]), st.integers(1, 9))
def test_what_is_compressed_can_be_read(message: bytes, encoding: str, level: int) -> None:
    """Also by others, and it is always smaller."""
    message += bytes(300)
    compressed = compress(message, encoding, level)
    assert compressed is not None
    assert len(compressed) < len(message)
    assert decompress(memoryview(compressed), encoding, len(message)) == message
    assert (gzip if encoding == "gzip" else zlib).decompress(compressed) == message


def test_what_does_not_pay_is_left_as_it_is() -> None:
    assert compress(bytes(100), "gzip", 6) is None
    assert compress(random.Random(1).randbytes(5000), "gzip", 9) is None


CHOICES = [
    (None, None),
    ("", None),
    ("identity", None),
    ("identity, deflate, gzip", "gzip"),
    ("identity,deflate", "deflate"),
    ("snappy, br", None),
    (" gzip ", "gzip"),
]


@pytest.mark.parametrize(("accepted", "encoding"), CHOICES)
def test_the_encoding_is_one_that_the_client_reads(accepted: str | None, encoding: str | None) -> None:
    assert choose_encoding(accepted) == encoding
