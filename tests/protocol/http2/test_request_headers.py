"""What a header block says is asked once, as long as it says the same."""

from __future__ import annotations

import pytest
from h2.exceptions import DenialOfServiceError, ProtocolError
from hpack.hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from protocol.http2.request_headers import Headers, MalformedHeadersError, RequestHeaders

BASE = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x"), (b":authority", b"a")]


class Reader:
    def __init__(self, max_size: int = 16384) -> None:
        self.asked: list[Headers] = []
        self.headers: RequestHeaders[Headers] = RequestHeaders(self._interpret, max_size)

    def _interpret(self, headers: Headers) -> Headers:
        self.asked.append(headers)
        return headers


def test_the_same_block_is_understood_once() -> None:
    reader, encoder = Reader(), Encoder()
    blocks = [encoder.encode(BASE) for _ in range(5)]
    assert blocks[0] != blocks[1] == blocks[4]
    found = [reader.headers.request(block) for block in blocks]
    assert [list(one) for one in found] == [BASE] * 5
    assert found[1] is found[4]
    assert len(reader.asked) == 2  # the first one, which fills the table, and one that refers to it


def test_not_when_the_table_has_changed() -> None:
    """The same bytes refer to something else then."""
    reader, encoder = Reader(), Encoder()
    for _ in range(2):
        reader.headers.request(encoder.encode(BASE))
    block = encoder.encode(BASE)
    reader.headers.skip(encoder.encode([(b":authority", b"b")]))
    reader.headers.skip(encoder.encode([(b":path", b"/other")]))
    assert dict(reader.headers.request(block)) == {**dict(BASE), b":path": b"/other", b":authority": b"b"}


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 3), st.booleans()), max_size=60))
def test_any_sequence_of_headers_is_read_as_it_was_written(sent: list[tuple[str, int, bool]]) -> None:
    """With a small table, so that entries fall out of it all the time; some literals never enter it."""
    reader, encoder = Reader(), Encoder()
    encoder.header_table_size = 200
    for name, number, is_sensitive in sent:
        headers = [*BASE, (name.encode(), str(number).encode() * 20)]
        block = encoder.encode([(*header, is_sensitive) for header in headers])
        assert [tuple(header) for header in reader.headers.request(block)] == headers


def test_space_around_values_means_nothing() -> None:
    reader = Reader()
    block = Encoder().encode([*BASE, (b"x", b"\t a b  "), (b"y", b" ")])
    assert list(reader.headers.request(block)) == [*BASE, (b"x", b"a b"), (b"y", b"")]


MALFORMED = [[(b"Upper", b"x")], [(b"connection", b"close")], [(b"a", b"b\r\n")], [(b"a", b" \0")], [(b":late", b"x")]]


@pytest.mark.parametrize("more", MALFORMED)
def test_malformed_headers_are_told_apart_from_broken_ones(more: list[tuple[bytes, bytes]]) -> None:
    """The table has taken note of them, so those behind them mean what they say."""
    reader, encoder = Reader(), Encoder()
    with pytest.raises(MalformedHeadersError):
        reader.headers.request(encoder.encode([*BASE, *more]))
    assert list(reader.headers.request(encoder.encode(BASE))) == BASE
    with pytest.raises(MalformedHeadersError):
        reader.headers.trailers(encoder.encode(more))
    with pytest.raises(ProtocolError) as raised:
        reader.headers.request(b"\xff\xff\xff\xff\xff")
    assert not isinstance(raised.value, MalformedHeadersError)


def test_something_may_take_the_place_of_a_malformed_request() -> None:
    headers: RequestHeaders[object] = RequestHeaders(lambda headers: headers, 16384, str.upper)
    encoder = Encoder()
    for _ in range(2):
        assert "ILLEGAL CHARACTER" in str(headers.request(encoder.encode([*BASE, ("a b", "x")])))
    assert headers.kept == {}


def test_a_short_block_that_means_much_is_not_kept() -> None:
    """It may refer to an entry of the table again and again."""
    reader, encoder = Reader(), Encoder()
    headers = [*BASE, *[(b"x", bytes(b"v" * 1000))] * 8]
    for _ in range(3):
        block = encoder.encode(headers)
        assert list(reader.headers.request(block)) == headers
    assert len(block) < 50
    assert reader.headers.kept == {}


def test_what_is_kept_is_bounded() -> None:
    reader = Reader()
    for number in range(1000):
        block = Encoder().encode([(name, value, True) for name, value in [*BASE, (b"n", str(number).encode())]])
        reader.headers.request(block)
    assert len(reader.headers.kept) <= 32
    large = Encoder().encode([(name, value, True) for name, value in [*BASE, (b"n", bytes(3000).hex().encode())]])
    before = len(reader.asked)
    reader.headers.request(large)
    reader.headers.request(large)
    assert len(reader.asked) == before + 2


@pytest.mark.parametrize(
    "more",
    [(b"Upper", b"x"), (b":late", b"x"), (b"connection", b"close"), (b"te", b"gzip"), (b"x", b"a\nb"), (b"", b"")],
)
def test_broken_headers_are_refused_each_time(more: tuple[bytes, bytes]) -> None:
    reader = Reader()
    block = Encoder().encode([(name, value, True) for name, value in [*BASE, more]])
    for _ in range(2):
        with pytest.raises(ProtocolError):
            reader.headers.request(block)
    assert not reader.asked


def test_trailers_have_other_rules() -> None:
    """The same block is refused as one thing, and taken as the other."""
    block = Encoder().encode([(b"a", b"b", True)])
    reader = Reader()
    reader.headers.trailers(block)
    with pytest.raises(ProtocolError):
        reader.headers.request(block)
    with pytest.raises(ProtocolError):
        reader.headers.trailers(Encoder().encode(BASE))


def test_a_bomb() -> None:
    reader = Reader(max_size=10_000)
    reader.headers.skip(Encoder().encode([(b"bomb", b"x" * 3000)], huffman=False))
    with pytest.raises(DenialOfServiceError):
        reader.headers.request(b"\xbe" * 200)


@pytest.mark.parametrize(
    "block", [b"\xff", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x80", b"\0\5ab", b"\x3f\xe2\x1f"]
)
def test_blocks_that_cannot_be_read(block: bytes) -> None:
    """Cut off, beyond the table, and a table larger than ours."""
    with pytest.raises(ProtocolError):
        Reader().headers.request(block)


@pytest.mark.parametrize("block", [b"\xff", b"\x7f\xff", b"\x40\x7f", b"\x00\x05ab"])
def test_the_error_of_a_cut_block_names_no_place_in_memory(block: bytes) -> None:
    texts = []
    for _ in range(2):
        with pytest.raises(ProtocolError, match="Error decoding header block: ") as caught:
            Reader().headers.request(bytes(bytearray(block)))
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert " at 0x" not in texts[0]
