"""Forms: parts, names and contents, however they are cut into pieces; what is damaged."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidArgument
from protocol.http.codec.multipart import Event, FormReader, Part, PartEnd, boundary_of

FORM = (
    b'--XX\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--XX\r\ncontent-disposition: form-data; name="file"; filename="in \\"1\\".jsonl"\r\n'
    b"Content-Type: application/octet-stream\r\n\r\n{}\r\n--X\r\n\r\n\r\n--XX \r\n"
    b'Content-Disposition: form-data; name="empty"; filename=plain\r\n\r\n\r\n--XX--\r\nignored'
)


def read(*pieces: bytes) -> list[tuple[Part, bytes]]:
    reader = FormReader(b"XX")
    parts: list[tuple[Part, bytes]] = []
    events: list[Event] = [event for piece in pieces for event in reader.feed(piece)]
    content = b""
    for event in events:
        match event:
            case Part():
                parts.append((event, b""))
                content = b""
            case bytes():
                content += event
            case PartEnd.END:
                parts[-1] = (parts[-1][0], content)
    assert reader.has_ended
    return parts


EXPECTED = [
    (Part("purpose"), b"batch"),
    (Part("file", 'in "1".jsonl'), b"{}\r\n--X\r\n\r\n"),
    (Part("empty", "plain"), b""),
]


def test_parts_have_names_and_contents() -> None:
    assert read(FORM) == EXPECTED


def test_a_form_may_come_byte_by_byte() -> None:
    assert read(*[FORM[place : place + 1] for place in range(len(FORM))]) == EXPECTED


@given(st.lists(st.integers(0, len(FORM)), max_size=8))
def test_a_form_may_come_in_any_pieces(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(FORM)]
    assert read(*[FORM[start:end] for start, end in pairwise(places)]) == EXPECTED


@given(st.binary(max_size=400), st.integers(1, 50))
def test_any_content_comes_as_it_was_sent(content: bytes, size: int) -> None:
    form = b'--XX\r\nContent-Disposition: form-data; name="f"\r\n\r\n' + content + b"\r\n--XX--"
    if b"\r\n--XX" in b"\r\n" + content:
        return
    pieces = [form[start : start + size] for start in range(0, len(form), size)]
    assert read(*pieces) == [(Part("f"), content)]


def test_little_is_held_of_a_large_content() -> None:
    reader = FormReader(b"XX")
    list(reader.feed(b'--XX\r\nContent-Disposition: form-data; name="f"\r\n\r\n'))
    for _ in range(10):
        assert sum(len(event) for event in reader.feed(b"x" * 10_000) if isinstance(event, bytes)) >= 10_000 - 6


def test_names_of_files_may_be_encoded() -> None:
    head = b'--XX\r\nContent-Disposition: form-data; name="f"; filename="x"; filename*=UTF-8\'\'%e2%82%ac.txt\r\n\r\n'
    assert read(head + b"\r\n--XX--") == [(Part("f", "€.txt"), b"")]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (b"--XX\r\nContent-Type: text/plain\r\n\r\nx\r\n--XX--", "has no name"),
        (b'--XXYY\r\nContent-Disposition: form-data; name="f"\r\n\r\n', "boundary is followed"),
        (b"--XX\r\nA: " + b"x" * 9000, "more than 8192 bytes"),
        (b"--XX" + b" " * 9000, "boundary is followed"),
    ],
)
def test_a_damaged_form_is_refused(form: bytes, text: str) -> None:
    reader = FormReader(b"XX")
    with pytest.raises(InvalidArgument, match=text):
        list(reader.feed(form))


def test_a_form_that_is_cut_off_has_not_ended() -> None:
    reader = FormReader(b"XX")
    list(reader.feed(FORM[:-12]))
    assert not reader.has_ended


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        (b"multipart/form-data; boundary=abc", b"abc"),
        (b'Multipart/Form-Data; charset=utf-8; boundary="a b"', b"a b"),
    ],
)
def test_boundaries(content_type: bytes, boundary: bytes) -> None:
    assert boundary_of(content_type) == boundary


@pytest.mark.parametrize("content_type", [b"", b"application/json", b"multipart/form-data", b"text/x; boundary=a"])
def test_what_is_no_form_is_refused(content_type: bytes) -> None:
    with pytest.raises(InvalidArgument, match="multipart/form-data"):
        boundary_of(content_type)
