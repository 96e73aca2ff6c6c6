"""Message framing: whole, byte by byte, truncated, with trailing bytes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidArgument, PayloadTooLarge
from protocol.grpc.call.framing import PREFIX_LENGTH, MessageDeframer, frame, whole_message
from protocol.limits.body_rooms import MOST_ROOMS, BodyRooms
from tests.protocol.grpc.client import framed

LIMIT = 100_000


def deframe(chunks: Sequence[bytes], limit: int = LIMIT) -> tuple[list[tuple[bool, bytes]], int]:
    """All messages in the chunks, and how many bytes are left over."""
    deframer = MessageDeframer(limit)
    messages = []
    for chunk in chunks:
        deframer.feed(chunk)
        while (found := deframer.next_frame()) is not None:
            messages.append((found.is_compressed, bytes(found.payload)))
    return messages, deframer.buffered


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=3000)), max_size=8), st.lists(st.integers(1, 4000)))
def test_messages_come_out_as_they_went_in(messages: list[tuple[bool, bytes]], sizes: list[int]) -> None:
    """However the bytes are cut into chunks."""
    data = b"".join(framed(payload, flag) for flag, payload in messages)
    chunks, position = [], 0
    for size in sizes:
        chunks.append(data[position : position + size])
        position += size
    assert deframe([*chunks, data[position:]]) == (messages, 0)


def test_byte_by_byte() -> None:
    data = framed(b"hello") + framed(b"") + framed(b"x", 1)
    messages = [(False, b"hello"), (False, b""), (True, b"x")]
    assert deframe([data[index : index + 1] for index in range(len(data))]) == (messages, 0)


@pytest.mark.parametrize("length", range(1, 10))
def test_a_truncated_message_stays_buffered(length: int) -> None:
    assert deframe([framed(b"hello")[:length]]) == ([], length)


def test_trailing_bytes_stay_buffered() -> None:
    assert deframe([framed(b"hello") + b"\0\0"]) == ([(False, b"hello")], 2)


def test_a_payload_stays_as_it_is_while_more_comes() -> None:
    """Payloads are views; what is fed later must not change them."""
    deframer = MessageDeframer(LIMIT)
    for byte in framed(b"abc") + b"\0":
        deframer.feed(bytes([byte]))
    found = deframer.next_frame()
    assert found is not None
    for byte in (framed(b"defgh") * 50)[1:]:
        deframer.feed(bytes([byte]))
    assert bytes(found.payload) == b"abc"
    following = deframer.next_frame()
    assert following is not None
    assert bytes(following.payload) == b"defgh"


@pytest.mark.parametrize("flag", [2, 7, 255])
def test_a_flag_other_than_0_and_1_is_refused(flag: int) -> None:
    with pytest.raises(InvalidArgument, match=f"must be 0 or 1, got {flag}"):
        deframe([framed(b"x", flag)])


@pytest.mark.parametrize("size", [LIMIT + 1, 2**31, 2**32 - 1])
def test_a_message_over_the_limit_is_refused_at_its_prefix(size: int) -> None:
    with pytest.raises(PayloadTooLarge, match=f"{size} bytes is larger than the server's limit of {LIMIT} bytes"):
        deframe([b"\0" + size.to_bytes(4, "big")])


def test_a_message_of_the_limit_is_taken() -> None:
    assert deframe([framed(bytes(LIMIT))]) == ([(False, bytes(LIMIT))], 0)


def test_small_chunks_are_gathered() -> None:
    """One object per byte would cost many times the message's size."""
    deframer = MessageDeframer(LIMIT)
    for byte in framed(bytes(10_000)):
        deframer.feed(bytes([byte]))
    assert len(deframer._chunks) < 10


@given(st.binary(max_size=1000))
def test_what_is_framed_can_be_deframed(message: bytes) -> None:
    assert deframe([b"".join(frame(message))]) == ([(False, message)], 0)


LARGE = bytes(range(256)) * 300


def test_a_large_message_is_received_where_it_stays() -> None:
    """From its prefix on there is memory for the rest of it, and what follows it does not belong there."""
    deframer = MessageDeframer(LIMIT)
    data = framed(LARGE) + framed(b"next")
    assert deframer.room(1) is None
    deframer.feed(data[:1000])
    position = 1000
    while (room := deframer.room(30_000)) is not None:
        assert not deframer.is_ready
        room[:] = data[position : position + len(room)]
        position += len(room)
        deframer.feed(room)
    assert position == PREFIX_LENGTH + len(LARGE)
    deframer.feed(data[position:])
    found = deframer.next_frame()
    assert found is not None
    assert found.payload == LARGE
    assert found.payload.readonly
    following = deframer.next_frame()
    assert following is not None
    assert bytes(following.payload) == b"next"
    assert deframer.buffered == 0


def test_a_large_message_comes_without_room_for_it() -> None:
    """Other calls have announced as much as is reserved for messages that come."""
    rooms = BodyRooms()
    message = bytes(range(256)) * (1 << 13)
    data = framed(message)
    begun, data = data[: PREFIX_LENGTH + 1], data[PREFIX_LENGTH + 1 :]
    others = [MessageDeframer(1 << 31, rooms) for _ in range(MOST_ROOMS + 10)]
    for other in others:
        other.feed(begun)
    assert rooms.count == MOST_ROOMS
    last = others[-1]
    assert last.room(1) is None
    for start in range(0, len(data), 65536):
        last.feed(data[start : start + 65536])
    found = last.next_frame()
    assert found is not None
    assert bytes(found.payload) == message


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 50_000)), min_size=1, max_size=20))
def test_room_and_chunks_may_be_mixed(pieces: list[tuple[bool, int]]) -> None:
    data = framed(b"small") + framed(LARGE) + framed(LARGE[::-1], 1) + framed(b"")
    deframer = MessageDeframer(LIMIT)
    messages = []
    position = 0
    for in_place, size in [*pieces, (False, len(data))]:
        room = deframer.room(size) if in_place else None
        if room is None:
            deframer.feed(data[position : position + size])
            position += size
        else:
            room[:] = data[position : position + len(room)]
            position += len(room)
            deframer.feed(room)
        while (found := deframer.next_frame()) is not None:
            messages.append((found.is_compressed, bytes(found.payload)))
    assert messages == [(False, b"small"), (False, LARGE), (True, LARGE[::-1]), (False, b"")]
    assert deframer.buffered == 0


@pytest.mark.parametrize("message", [b"abc", LARGE])
def test_a_message_by_itself_can_be_looked_at(message: bytes) -> None:
    deframer = MessageDeframer(1 << 20)
    data = framed(message)
    deframer.feed(data[:6])
    assert deframer.whole() is None
    deframer.feed(data[6:])
    for _ in range(2):
        whole = deframer.whole()
        assert whole is not None
        assert whole == message
    assert not deframer.has_more
    found = deframer.next_frame()
    assert found is not None
    assert found.payload == message
    assert (deframer.whole(), deframer.buffered, deframer.next_frame()) == (None, 0, None)


def test_a_message_with_more_behind_it_is_not_by_itself() -> None:
    deframer = MessageDeframer(1 << 20)
    deframer.feed(b"\0\0\0\0\0")
    empty = deframer.whole()
    assert empty is not None
    assert not empty
    deframer.feed(b"\0")  # and the next one begins
    assert deframer.whole() is None
    assert deframer.has_more


@pytest.mark.parametrize("data", [b"\1\0\0\0\1a", b"\2\0\0\0\1a", b"\0\x7f\0\0\0a", b"\0\0", b""])
def test_what_is_compressed_wrong_or_cut_off_is_no_whole_message(data: bytes) -> None:
    deframer = MessageDeframer(1 << 20)
    deframer.feed(data)
    assert deframer.whole() is None
    assert whole_message(data, 1 << 20) is None


def test_bytes_that_are_one_message() -> None:
    assert whole_message(framed(b"abc"), 3) == b"abc"
    assert whole_message(framed(b"abc"), 2) is None
    assert whole_message(framed(b"abc") + b"d", 3) is None
    large = bytes(range(256)) * 64
    message = whole_message(framed(large), 1 << 20)
    assert isinstance(message, memoryview)  # not copied
    assert message == large
