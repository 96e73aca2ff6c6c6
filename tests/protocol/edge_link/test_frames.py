"""Frames and records: what is written is read, in whatever pieces it comes; what is invalid is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.edge_link.frames import MAGIC, PREFIX, PREFIX_SIZE, BrokenFrame, Burst, Frame, FrameReader

NUMBERS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20)
BYTES = st.lists(st.binary(max_size=50), max_size=5)
CONTENTS = st.tuples(NUMBERS, BYTES, BYTES)


def encoded(contents: tuple[list[int], list[bytes], list[bytes]]) -> bytes:
    burst = Burst()
    burst.numbers += contents[0]
    for text in contents[1]:
        burst.add_text(text)
    for data in contents[2]:
        burst.data.append(data)
        burst.data_size += len(data)
    size = burst.size
    data = b"".join(burst.take())
    assert len(data) == size
    assert burst.size == PREFIX_SIZE, "nothing is left"
    return data


def read(data: bytes, cuts: list[int], most: int = 1 << 30) -> list[Frame]:
    """By a reader that gets the data in pieces."""
    reader = FrameReader(most)
    found: list[Frame] = []
    position = 0
    for end in [*sorted(cuts), len(data)]:
        while position < end:
            room = reader.room
            if room is None:
                found += reader.take(data[position:end])
                position = end
            else:
                count = min(len(room), end - position)
                room[:count] = data[position : position + count]
                position += count
                if (frame := reader.fill(count)) is not None:
                    found.append(frame)
    return found


@given(st.lists(CONTENTS, max_size=4), st.data())
def test_frames_are_read_as_they_were_written_in_whatever_pieces(
    contents: list[tuple[list[int], list[bytes], list[bytes]]], drawn: st.DataObject
) -> None:
    data = b"".join(map(encoded, contents))
    cuts = drawn.draw(st.lists(st.integers(0, len(data)), max_size=8))
    frames = read(data, cuts)
    assert len(frames) == len(contents)
    for frame, (numbers, texts, tensors) in zip(frames, contents, strict=True):
        assert frame.take(len(numbers)) == numbers
        assert [bytes(frame.take_text(len(text))) for text in texts] == texts
        assert [bytes(frame.take_data(len(part))) for part in tensors] == tensors
        frame.check_end()
        assert frame.data.readonly


def test_byte_by_byte() -> None:
    data = encoded(([1, 2], [b"text"], [b"data"])) * 2
    assert len(read(data, list(range(len(data))))) == 2


@given(st.binary(max_size=200))
def test_whatever_comes_is_a_frame_or_refused(data: bytes) -> None:
    try:
        read(data, [], most=1 << 20)
    except BrokenFrame:
        pass
    else:
        assert not data or len(data) < PREFIX_SIZE or data.startswith(MAGIC)


@pytest.mark.parametrize("sizes", [(2**32 - 1, 0, 0), (0, 2**63, 0), (0, 0, 2**64 - 1), (1 << 20, 1 << 20, 1 << 21)])
def test_a_length_beyond_the_limit_is_refused_before_there_is_memory_for_it(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(BrokenFrame):
        read(PREFIX.pack(MAGIC, *sizes), [], most=1 << 20)


@pytest.mark.parametrize("count", [-1, 4, 2**62])
def test_a_record_cannot_read_over_the_end(count: int) -> None:
    (frame,) = read(encoded(([1, 2, 3], [b"abc"], [b"abc"])), [])
    for take in (frame.take, frame.take_text, frame.take_data):
        with pytest.raises(BrokenFrame):
            take(count)


@pytest.mark.parametrize(("texts", "data"), [([b"text"], []), ([], [b"data"])])
def test_what_no_record_names_is_refused(texts: list[bytes], data: list[bytes]) -> None:
    (frame,) = read(encoded(([1], texts, data)), [])
    frame.take(1)
    with pytest.raises(BrokenFrame, match="that no record names"):
        frame.check_end()
