"""What is sent is what h2's decoder reads, and most of it is encoded once."""

from __future__ import annotations

import pytest
from grpclib.const import Status
from hpack.hpack import Decoder

from protocol.grpc.call.headers import RESPONSE_HEADERS, trailers
from protocol.http2.response_headers import ResponseHeaders

OK = trailers(Status.OK, "")


def test_what_is_the_same_is_encoded_once_and_short() -> None:
    headers, decoder = ResponseHeaders(), Decoder()
    for number in range(5):
        for sent in (RESPONSE_HEADERS, OK):
            block = headers.encode(sent)
            assert list(decoder.decode(block, raw=True)) == list(sent)
            if number:
                assert len(block) <= 3
    assert headers.encode(OK) is headers.encode(OK)


def test_texts_of_errors_leave_the_table_alone() -> None:
    headers, decoder = ResponseHeaders(), Decoder()
    for number in range(50):
        for sent in (RESPONSE_HEADERS, trailers(Status.NOT_FOUND, f"no {number}"), OK):
            assert list(decoder.decode(headers.encode(sent), raw=True)) == list(sent)
    assert len(headers.encoder.header_table.dynamic_entries) <= 5


@pytest.mark.parametrize("sizes", [[0], [10], [100], [0, 4096], [2**31 - 1], [4096, 0, 60]])
def test_a_client_chooses_the_size_of_the_table(sizes: list[int]) -> None:
    headers, decoder = ResponseHeaders(), Decoder()
    for size in sizes:
        headers.set_table_size(size)
        decoder.max_allowed_table_size = size
        for _ in range(3):
            for sent in (RESPONSE_HEADERS, OK):
                assert list(decoder.decode(headers.encode(sent), raw=True)) == list(sent)
    assert headers.encoder.header_table._current_size <= min(sizes[-1], 4096)
