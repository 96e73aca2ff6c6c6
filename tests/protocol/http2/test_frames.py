"""Bytes to frames, however they are cut."""

from __future__ import annotations

import pytest
from h2.exceptions import FrameTooLargeError, ProtocolError

from protocol.http2 import frames
from protocol.http2.frames import PREFACE, Frame, FrameReader, frame

MAX = 100_000


def reader() -> FrameReader:
    found = FrameReader(MAX)
    assert read(found, PREFACE) == []
    return found


def read(reader: FrameReader, data: bytes) -> list[Frame]:
    """All frames; raises what is wrong."""
    found, error = reader.read(data)
    if error is not None:
        raise error
    return found


def test_frames_in_one_read() -> None:
    data = frame(frames.PING, 1, 0, b"12345678") + frame(200, 7, 2**31 - 1)
    assert read(reader(), data) == [(frames.PING, 1, 0, b"12345678"), (200, 7, 2**31 - 1, b"")]


def test_the_reserved_bit_means_nothing() -> None:
    assert read(reader(), b"\0\0\0\0\0\x80\0\0\5") == [(frames.DATA, 0, 5, b"")]


@pytest.mark.parametrize("piece", [1, 2, 8, 9, 10, 100])
def test_frames_in_pieces(piece: int) -> None:
    found = reader()
    data = frame(frames.HEADERS, 4, 1, bytes(500)) + frame(frames.DATA, 1, 1, b"abc")
    seen = [one for start in range(0, len(data), piece) for one in read(found, data[start : start + piece])]
    assert seen == [(frames.HEADERS, 4, 1, bytes(500)), (frames.DATA, 1, 1, b"abc")]


@pytest.mark.parametrize("piece", [1000, 9001, 65536])
def test_a_large_data_frame_is_given_as_it_comes(piece: int) -> None:
    """Its flags with its last piece."""
    found = reader()
    payload = bytes(range(256)) * 200
    data = frame(frames.DATA, frames.END_STREAM, 3, payload) + frame(frames.DATA, 0, 5, b"x")
    seen = [
        (kind, flags, stream, bytes(body))
        for start in range(0, len(data), piece)
        for kind, flags, stream, body in read(found, data[start : start + piece])
    ]
    *pieces, last, behind = seen
    assert behind == (frames.DATA, 0, 5, b"x")
    assert last[1] == frames.END_STREAM
    assert all(one[:3] == (frames.DATA, 0, 3) and one[3] for one in pieces)
    assert b"".join(one[3] for one in (*pieces, last)) == payload


@pytest.mark.parametrize("padding", [0, 1, 255])
@pytest.mark.parametrize("size", [9000, 70_000])
@pytest.mark.parametrize("piece", [1, 9, 10, 11, 4000, 9001, 65536])
def test_the_padding_of_a_large_frame_is_a_frame_behind_it(piece: int, size: int, padding: int) -> None:
    """With its flags, so that nothing that was sent is left out of the windows."""
    found = reader()
    payload = bytes(range(250)) * (size // 250)
    padded = bytes([padding]) + payload + bytes(padding)
    flags = frames.END_STREAM | frames.IS_PADDED
    data = frame(frames.DATA, flags, 3, padded) + frame(frames.DATA, 0, 5, b"x")
    seen = [
        (kind, flags, stream, bytes(body))
        for start in range(0, len(data), piece)
        for kind, flags, stream, body in read(found, data[start : start + piece])
    ]
    *pieces, last, behind = seen
    assert behind == (frames.DATA, 0, 5, b"x")
    if pieces:
        assert last == (frames.DATA, flags, 3, bytes([padding]) + bytes(padding))
        assert all(one[:3] == (frames.DATA, 0, 3) and one[3] for one in pieces)
        assert b"".join(one[3] for one in pieces) == payload
    else:
        assert last == (frames.DATA, flags, 3, padded)


def test_a_large_frame_is_not_held_for_its_padding() -> None:
    found = reader()
    data = frame(frames.DATA, frames.IS_PADDED, 3, b"\5" + bytes(90_000))
    for start in range(0, len(data), 1000):
        read(found, data[start : start + 1000])
        assert found._rest_size < 2000


def test_a_frame_that_is_too_large_is_refused_by_its_header() -> None:
    with pytest.raises(FrameTooLargeError, match="length 100001, max 100000"):
        read(reader(), frames.frame_header(MAX + 1, frames.DATA, 0, 1))


@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", b"\0"])
def test_another_protocol(greeting: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(FrameReader(MAX), greeting)


def test_the_preface_in_pieces() -> None:
    found = FrameReader(MAX)
    for byte in PREFACE:
        assert read(found, bytes([byte])) == []
    assert read(found, frame(frames.SETTINGS, 1, 0)) == [(frames.SETTINGS, 1, 0, b"")]


def test_frames_before_what_is_wrong_are_there() -> None:
    found, error = reader().read(frame(frames.PING, 0, 0, b"12345678") + frames.frame_header(MAX + 1, 0, 0, 1))
    assert found == [(frames.PING, 0, 0, b"12345678")]
    assert isinstance(error, FrameTooLargeError)


@pytest.mark.parametrize("kind", [frames.HEADERS, frames.CONTINUATION])
def test_a_long_header_block_is_several_frames(kind: int) -> None:
    """6 kB of them take a millisecond and more to decode, sixteen 20."""
    bounded = FrameReader(MAX)
    data: bytes | None = PREFACE + frame(kind, 4, 1, bytes(6000)) * 16 + frame(kind, 4, 1, bytes(200)) * 16
    counts: list[int] = []
    while data is not None or bounded.has_more:
        found, error = bounded.read(data, 16)
        assert error is None
        counts.append(len(found))
        data = None
    assert sum(counts) == 32
    assert set(counts[:8]) == {2}
    assert counts[8:] == [16]


@pytest.mark.parametrize("most", [1, 2, 3, 100])
@pytest.mark.parametrize("piece", [3, 50, 30_000])
def test_no_more_than_are_asked_for_are_cut(most: int, piece: int) -> None:
    """The bytes behind them are looked at when the next are."""
    bounded = reader()
    data = b"".join(frame(frames.PING, 0, 0, number.to_bytes(8, "big")) for number in range(20))
    data += frame(frames.DATA, 1, 1, bytes(20_000)) + frame(frames.DATA, 9, 1, b"\2abc\0\0") + frame(200, 0, 0) * 5
    seen: list[Frame] = []
    for start in range(0, len(data), piece):
        part: bytes | None = data[start : start + piece]
        while part is not None or bounded.has_more:
            found, error = bounded.read(part, most)
            assert error is None
            assert len(found) <= most
            seen += found
            part = None
    whole = reader()
    expected = [each for start in range(0, len(data), piece) for each in read(whole, data[start : start + piece])]
    assert [(*each[:3], bytes(each[3])) for each in seen] == [(*each[:3], bytes(each[3])) for each in expected]


def test_what_is_wrong_behind_as_many_as_were_asked_for_is_found_later() -> None:
    found = reader()
    wrong = frame(frames.PING, 0, 0, b"12345678") * 2 + frames.frame_header(MAX + 1, 0, 0, 1)
    assert found.read(wrong, 2) == ([(frames.PING, 0, 0, b"12345678")] * 2, None)
    assert found.has_more
    rest, error = found.read(None, 2)
    assert rest == []
    assert isinstance(error, FrameTooLargeError)
