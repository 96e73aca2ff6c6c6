"""Bodies in any pieces, of a length that is declared or not."""

from __future__ import annotations

import pytest

from protocol.http.http2.body import StreamBody
from protocol.limits.body_rooms import MOST_ROOMS, UNCOUNTED_SIZE, BodyRooms

LARGE = bytes(range(256)) * 1024  # more than is joined


@pytest.mark.parametrize("declared", [None, 10])
@pytest.mark.parametrize("pieces", [[b"0123456789"], [b"01", b"23456789"], [b"", b"0123456789"], [b"0123456789", b""]])
def test_pieces_are_joined(declared: int | None, pieces: list[bytes]) -> None:
    body = StreamBody(declared)
    for number, piece in enumerate(pieces):
        body.feed(piece, len(piece) + 1, has_ended=number + 1 == len(pieces))
        assert not body.is_wrong
    assert bytes(body.whole()) == b"0123456789"
    assert body.take_unacknowledged() == 10 + len(pieces)
    assert body.take_unacknowledged() == 0


def test_one_piece_is_not_copied() -> None:
    body = StreamBody(len(LARGE))
    body.feed(LARGE, len(LARGE), has_ended=True)
    assert body.whole() is LARGE


@pytest.mark.parametrize("in_place", [True, False])
def test_a_large_body_goes_where_it_belongs(in_place: bool) -> None:
    body = StreamBody(len(LARGE))
    body.feed(LARGE[:1000], 1000, has_ended=False)
    while body.received < len(LARGE):
        room = body.room(30_000)
        assert room is not None
        piece = LARGE[body.received : body.received + len(room)]
        if in_place:
            room[:] = piece
        body.feed(room if in_place else piece, len(piece), has_ended=body.received + len(piece) == len(LARGE))
    assert body.room(1) is None
    assert bytes(body.whole()) == LARGE


def test_a_large_body_comes_without_room_for_it() -> None:
    """Other requests have announced as much as is reserved for bodies that come."""
    rooms = BodyRooms()
    others = [StreamBody(UNCOUNTED_SIZE, rooms) for _ in range(MOST_ROOMS + 10)]
    for other in others:
        other.feed(b"0", 1, has_ended=False)
    assert rooms.count == MOST_ROOMS
    last = others[-1]
    assert last.room(1) is None
    rest = LARGE * 4
    last.feed(rest[1:1000], 999, has_ended=False)
    last.feed(rest[1000:], len(rest) - 1000, has_ended=True)
    assert not last.is_wrong
    assert bytes(last.whole()) == b"0" + rest[1:]


@pytest.mark.parametrize("declared", [len(LARGE), None])
def test_no_room_is_made_before_anything_has_come(declared: int | None) -> None:
    assert StreamBody(declared).room(100_000) is None


@pytest.mark.parametrize(
    ("declared", "pieces"), [(3, [b"ab"]), (3, [b"abcd"]), (0, [b"a"]), (200_000, [bytes(150_000), bytes(60_000)])]
)
def test_a_body_that_is_not_as_long_as_was_said(declared: int, pieces: list[bytes]) -> None:
    body = StreamBody(declared)
    for number, piece in enumerate(pieces):
        body.feed(piece, len(piece), has_ended=number + 1 == len(pieces))
    assert body.is_wrong


def test_parts_are_taken_where_there_are_several() -> None:
    body = StreamBody(None)
    body.feed(b"a" * 100_000, 0, has_ended=False)
    assert body.take_parts() is None, "nothing is to be joined"
    body.feed(b"b", 0, has_ended=True)
    assert body.take_parts() == [b"a" * 100_000, b"b"]
    assert body.whole() == b""
    sized = StreamBody(len(LARGE))
    sized.feed(LARGE[:1000], 0, has_ended=False)
    sized.feed(LARGE[1000:], 0, has_ended=True)
    assert sized.take_parts() is None, "it is in one piece"
    assert bytes(sized.whole()) == LARGE
