"""Input of batches: what is read of good lines, and what is said of wrong ones, however the file is cut."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import Internal
from protocol.jobs.batches.batch import LineError
from protocol.jobs.batches.lines import (
    MAX_ERRORS,
    InputReader,
    Line,
    LineRequest,
    body_of,
    decode_line_request,
    encode_line_request,
)

URL = "/v1/completions"


def line(custom_id: str = "a", **change: Any) -> bytes:
    members: dict[str, Any] = {"custom_id": custom_id, "method": "POST", "url": URL, "body": {"model": "m"}, **change}
    return json.dumps({name: value for name, value in members.items() if value is not None}).encode()


def read(*pieces: bytes, max_lines: int = 100, max_line_size: int = 1000) -> InputReader:
    reader = InputReader(URL, max_lines=max_lines, max_line_size=max_line_size)
    for piece in pieces:
        reader.feed(piece)
    reader.finish()
    return reader


def test_lines_have_places() -> None:
    text = line("a") + b"\n\r\n" + line("\N{EURO SIGN}") + b"\r\n  \n" + line("c")
    reader = read(text)
    assert reader.errors == []
    assert (reader.model, [each.custom_id for each in reader.lines]) == ("m", ["a", "\N{EURO SIGN}", "c"])
    assert [json.loads(text[each.start : each.start + each.size])["custom_id"] for each in reader.lines] == [
        "a",
        "\N{EURO SIGN}",
        "c",
    ]


@given(st.lists(st.integers(0, 400), max_size=6))
def test_a_file_may_come_in_any_pieces(cuts: list[int]) -> None:
    text = b"\n".join([line("a"), line("b"), b"{", line("a"), line("c", url="/x")])
    places = [0, *sorted(cuts), len(text)]
    reader = read(*[text[start:end] for start, end in pairwise(places)])
    assert [(error.line, error.code) for error in reader.errors] == [
        (3, "invalid_json_line"),
        (4, "duplicate_custom_id"),
        (5, "url_mismatch"),
    ]
    assert reader.lines == read(text).lines


@pytest.mark.parametrize(
    ("wrong", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b'"text"', "invalid_type", None),
        (b'{"body": {"x": ' + b"[" * 980, "invalid_json_line", None),
        (b'{"custom_id": "\xff"}', "invalid_json_line", None),
        (b'{"method": "POST"}', "missing_required_parameter", "custom_id"),
        (line(method=None), "missing_required_parameter", "method"),
        (line(url=None), "missing_required_parameter", "url"),
        (line(body=None), "missing_required_parameter", "body"),
        (b'{"custom_id": 7}', "invalid_type", None),
        (line(body=[]), "invalid_type", None),
        (line(body={"model": 7}), "invalid_type", None),
        (line("x" * 513), "invalid_custom_id", "custom_id"),
        (line(method="GET"), "invalid_method", "method"),
        (line(url="/v1/chat/completions"), "url_mismatch", "url"),
        (line("b" * 400, body={"model": "m", "prompt": "x" * 700}), "line_too_long", None),
    ],
)
def test_what_is_wrong_is_told_with_its_line(wrong: bytes, code: str, param: str | None) -> None:
    reader = read(line("first") + b"\n" + wrong + b"\n" + line("last"))
    assert [(error.line, error.code, error.param) for error in reader.errors] == [(2, code, param)]


@pytest.mark.parametrize(("first", "second"), [("m", "n"), ("m", None), (None, "m")])
def test_lines_have_one_model(first: str | None, second: str | None) -> None:
    bodies = [{} if model is None else {"model": model} for model in (first, second)]
    reader = read(line("a", body=bodies[0]) + b"\n" + line("b", body=bodies[1]))
    assert [(error.line, error.code, error.param) for error in reader.errors] == [(2, "model_mismatch", "body.model")]


def test_a_duplicate_names_the_first_line() -> None:
    (error,) = read(b"\n".join([line("a"), line("b"), line("a")])).errors
    assert "line 1" in error.message


@pytest.mark.parametrize("text", [b"", b"\n \n\r\n"])
def test_a_file_without_lines(text: bytes) -> None:
    assert [error.code for error in read(text).errors] == ["empty_file"]


def test_a_file_with_too_many_lines_is_not_read_on() -> None:
    reader = InputReader(URL, max_lines=2, max_line_size=1000)
    reader.feed(b"".join(line(str(number)) + b"\n" for number in range(2)))
    assert not reader.is_done
    reader.feed(b"".join(line(str(number)) + b"\n" for number in range(2, 9)))
    assert reader.is_done
    assert len(reader.lines) == 3
    reader.finish()
    assert [(error.line, error.code) for error in reader.errors] == [(0, "too_many_tasks")]


def test_errors_have_an_end() -> None:
    reader = read(b"{\n" * 1000)
    assert len(reader.errors) == MAX_ERRORS
    assert reader.errors[-1] == LineError("invalid_json_line", "This line is not parseable as valid JSON.", MAX_ERRORS)


def test_a_line_without_an_end_is_not_held() -> None:
    reader = InputReader(URL, max_line_size=1000)
    for _ in range(100):
        reader.feed(b"x" * 1000)
    assert sum(map(len, reader._parts)) <= 1000
    reader.finish()
    assert [error.code for error in reader.errors] == ["line_too_long"]


def test_the_body_of_a_line_is_as_it_was_sent() -> None:
    assert bytes(body_of(b'{"custom_id": "a", "body": {"a" : 1.50}, "x": 1}')) == b'{"a" : 1.50}'
    with pytest.raises(Internal):
        body_of(b"{}")


def test_what_is_kept_of_a_line() -> None:
    request = LineRequest(URL, "m", "0123", 5, 7)
    assert decode_line_request(encode_line_request(request)) == request
    with pytest.raises(Internal):
        decode_line_request(b"\xc1")
    assert Line(5, 7, "a").size == 7
