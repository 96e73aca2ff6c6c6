"""The frames of a worker, whole, in pieces, and broken."""

from __future__ import annotations

import json
from array import array
from contextlib import suppress
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.python.wire.frames import BrokenFrame, Frame, FrameReader, decode_head, encode
from backends.python.wire.heads import (
    DoneHead,
    ExecutedHead,
    FailedHead,
    FamilyAsk,
    Head,
    LoadAsk,
    LogHead,
    MetricHead,
    decode_question,
    log_level_name,
)
from backends.python.worker.trioton_worker.frames import (
    CALL,
    COLUMNS,
    DONE,
    EXECUTE,
    EXECUTED,
    LOG,
    MAGIC,
    PREFIX,
    pack,
)

FIRST = pack(LOG, b'{"level":1,"message":"m","filename":"f","line":3}')
SECOND = pack(EXECUTED, b'{"wanted":7}', bytes(range(16)), b"[]", 5) + b"12345"

Parts: TypeAlias = tuple[int, bytes, bytes, object, bytes]


def parts(frame: Frame | None) -> Parts:
    assert frame is not None
    return frame.kind, bytes(frame.column), bytes(frame.schemas), json.loads(bytes(frame.head)), bytes(frame.body)


def read_all(*pieces: bytes) -> list[Parts]:
    reader = FrameReader()
    found = []
    for piece in pieces:
        frame = reader.next_frame(piece)
        while frame is not None:
            found.append(parts(frame))
            frame = reader.next_frame()
        assert reader.missing > 0
    return found


EXPECTED = [
    (LOG, b"", b"", {"level": 1, "message": "m", "filename": "f", "line": 3}, b""),
    (EXECUTED, bytes(range(16)), b"[]", {"wanted": 7}, b"12345"),
]


def test_frames_arrive_in_any_pieces() -> None:
    """Whole, byte by byte, and joined."""
    data = FIRST + SECOND
    assert read_all(FIRST, SECOND) == EXPECTED
    assert read_all(data) == EXPECTED
    assert read_all(*(data[index : index + 1] for index in range(len(data)))) == EXPECTED
    assert read_all(data[:-1]) == EXPECTED[:1]


@given(st.integers(0, len(FIRST + SECOND)), st.integers(0, len(FIRST + SECOND)))
def test_frames_arrive_cut_anywhere(one: int, other: int) -> None:
    data = FIRST + SECOND
    first, second = sorted((one, other))
    assert read_all(*filter(None, (data[:first], data[first:second], data[second:]))) == EXPECTED


def test_the_body_is_aligned() -> None:
    """So that arrays over it are, whatever stands before it."""
    for size in range(40):
        assert len(pack(DONE, b"x" * size, bytes(8 * (size % 3)))) % 16 == 0


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        PREFIX.pack(b"none", DONE, 0, 0, 0, 0),
        PREFIX.pack(MAGIC, EXECUTE, 0, 0, 0, 0),
        PREFIX.pack(MAGIC, 99, 0, 0, 0, 0),
        PREFIX.pack(MAGIC, EXECUTED, 7, 0, 0, 0),
        PREFIX.pack(MAGIC, EXECUTED, 1 << 40, 0, 0, 0),
        PREFIX.pack(MAGIC, EXECUTED, 0, 1 << 31, 0, 0),
        PREFIX.pack(MAGIC, EXECUTED, 0, 0, 1 << 31, 0),
        PREFIX.pack(MAGIC, EXECUTED, 0, 0, 0, 1 << 63),
    ],
)
def test_what_is_no_frame_is_refused_at_its_prefix(data: bytes) -> None:
    """Without waiting for what it announces."""
    with pytest.raises(BrokenFrame):
        read_all(data)


@given(st.binary(max_size=100))
def test_garbage_is_refused_or_waits_for_more(data: bytes) -> None:
    with suppress(BrokenFrame):
        assert read_all(data) == []


def head(data: bytes, form: type[Head]) -> object:
    frame = FrameReader().next_frame(pack(DONE, data))
    assert frame is not None
    return decode_head(frame, form)


def test_heads_are_typed() -> None:
    assert head(b"{}", DoneHead) == head(b"", DoneHead) == DoneHead(None)
    assert head(b'{"message":"no"}', FailedHead) == FailedHead("no", "")
    executed = head(b'{"errors":[[1,2,"x"]],"parameters":[[0,{"a":true,"b":1,"c":"t"}]]}', ExecutedHead)
    assert executed == ExecutedHead([(1, 2, "x")], [(0, {"a": True, "b": 1, "c": "t"})])


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (b"", FailedHead),
        (b"{", DoneHead),
        (b'{"config":1}', DoneHead),
        (b'{"extra":1}', DoneHead),
        (b"[]", FailedHead),
        (b"{}", FailedHead),
        (b'{"message":"\xff"}', FailedHead),
        (b'{"names":[]}', ExecutedHead),
        (b'{"errors":[1]}', ExecutedHead),
        (b'{"parameters":[[0,{"a":[1]}]]}', ExecutedHead),
        (b"[" * 100000, ExecutedHead),
    ],
)
def test_other_heads_are_refused(data: bytes, form: type[Head]) -> None:
    with pytest.raises(BrokenFrame):
        head(data, form)


def question(data: bytes) -> object:
    frame = FrameReader().next_frame(pack(CALL, data))
    assert frame is not None
    return decode_question(frame)


def test_questions_are_told_apart_by_what_they_want() -> None:
    assert question(b'{"do":"family","call":1,"name":"n","description":"d","kind":"gauge"}') == FamilyAsk(
        1, "n", "d", "gauge"
    )
    assert question(b'{"do":"load","call":2,"model":"m","config":"","files":[["a",3]]}') == LoadAsk(
        2, "m", "", [("a", 3)]
    )


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b'{"do":"fly","call":1}',
        b'{"do":"family","call":1,"name":"n","description":"d","kind":"summary"}',
        b'{"do":"value","call":1,"id":"x"}',
    ],
)
def test_other_questions_are_refused(data: bytes) -> None:
    with pytest.raises(BrokenFrame):
        question(data)


def test_a_changed_metric_has_a_number_or_its_text() -> None:
    assert head(b'{"do":"set","id":1,"value":"inf"}', MetricHead) == MetricHead("set", 1, "inf")
    assert head(b'{"do":"set","id":1,"value":2}', MetricHead) == MetricHead("set", 1, 2.0)


def test_log_levels() -> None:
    assert log_level_name(LogHead(3, "m", "f", 1)) == "VERBOSE"
    for level in (-1, 4):
        with pytest.raises(BrokenFrame):
            log_level_name(LogHead(level, "m", "f", 1))


def test_a_frame_to_the_worker() -> None:
    frame = encode(EXECUTE, {"a": "é"})
    magic, kind, column, schemas, size, body = PREFIX.unpack_from(frame)
    assert (magic, kind, column, schemas, body) == (MAGIC, EXECUTE, 0, 0, 0)
    assert json.loads(frame[PREFIX.size : PREFIX.size + size]) == {"a": "é"}
    assert len(frame) == PREFIX.size + size + -size % 16


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=400))
def test_a_column_is_its_numbers_whatever_their_count(numbers: list[int]) -> None:
    assert COLUMNS[len(numbers)](*numbers) == array("q", numbers).tobytes()


def test_the_counts_of_columns_that_are_kept_are_bounded() -> None:
    for count in range(1000, 2000):
        assert len(COLUMNS[count](*range(count))) == 8 * count
    assert len(COLUMNS) < 1000
