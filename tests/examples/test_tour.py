"""What the tour accepts as right, and how it ends where there is no server. The whole tour runs in `test_live.py`."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.examples.loading import load_example

tour = load_example("tour")
ocr, file_type, voice_activity, add_sub = tour.ocr, tour.file_type, tour.voice_activity, tour.add_sub
synthetic_speech = load_example("clients/synthetic_speech")
text_boxes = load_example("clients/text_boxes")

BOX = text_boxes.Box(0.0, 0.0, 100.0, 20.0, 0.9)
READ = [ocr.Line(text, 0.99, BOX, text == ocr.UPSIDE_DOWN) for text, _ in ocr.PAGE_LINES]


def test_a_page_read_as_it_was_drawn_is_right() -> None:
    assert tour.problems_of_page(READ) == []


def test_case_and_spaces_do_not_count() -> None:
    sloppy = [dataclasses.replace(line, text=line.text.replace(" ", "").upper()) for line in READ]
    assert tour.problems_of_page(sloppy) == []


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (READ[1:], "5 lines were drawn, 4 were read"),
        ([dataclasses.replace(READ[0], text="Something else"), *READ[1:]], "read 'Something else'"),
        ([dataclasses.replace(READ[0], was_upside_down=True), *READ[1:]], "taken for upside down"),
        ([*READ[:-1], dataclasses.replace(READ[-1], was_upside_down=False)], "taken for upright"),
        ([*READ[1:], READ[0]], "drawn"),
    ],
    ids=["a line is missing", "misread", "turned wrongly", "not turned", "wrong order"],
)
def test_a_page_read_otherwise_is_wrong(lines: list[Any], problem: str) -> None:
    assert any(problem in sentence for sentence in tour.problems_of_page(lines))


@pytest.mark.parametrize(
    ("found", "is_right"),
    [
        (((1.0, 2.0), (3.0, 4.0)), True),
        (((1.2, 1.8), (3.0, 4.2)), True),
        (((1.0, 2.0),), False),
        (((1.0, 2.0), (3.0, 4.5)), False),
        (((1.0, 4.0),), False),
    ],
)
def test_voices_must_be_found_where_they_were_put(found: tuple[Any, ...], is_right: bool) -> None:
    recording = synthetic_speech.Recording(np.zeros(16000, dtype=np.float32), ((1.0, 2.0), (3.0, 4.0)))
    speech = voice_activity.Speech(recording, np.zeros(1), found)
    assert (tour.problems_of_speech(speech) == []) == is_right


def typed(name: str, label: str, *, is_sure: bool = True) -> Any:
    return file_type.FileType(Path(name), label, label, 0.9, is_sure)


def test_rows_that_are_not_judged_say_so(tmp_path: Path) -> None:
    """The verdict behind them is about the others."""
    types = [typed("a.py", "python"), typed("b.toml", "ini", is_sure=False), typed("c.xyz", "whatever")]
    assert [row.endswith("(not judged)") for row in tour.describe_file_types(types)] == [False, True, True]


@pytest.mark.parametrize(
    ("types", "problems"),
    [
        ([typed("a.py", "python"), typed("Makefile", "makefile"), typed("b.xyz", "whatever")], []),
        ([typed("a.py", "python"), typed("b.toml", "ini")], ["b.toml was taken for ini"]),
        ([typed("a.py", "python"), typed("b.toml", "ini", is_sure=False)], []),
        ([typed("a.py", "python"), typed("b.py", "txt", is_sure=False)], ["b.py was taken for txt"]),
        ([typed("b.toml", "toml")], ["no Python file was found"]),
        ([typed("a.py", "python"), typed("b.py", "")], ["b.py was taken for nothing"]),
    ],
)
def test_files_of_known_kinds_must_be_told_apart(types: list[Any], problems: list[str]) -> None:
    assert tour.problems_of_file_types(types) == problems


def test_sums_are_checked() -> None:
    one, two = np.ones((1, 16), dtype=np.float32), np.full((1, 16), 2, dtype=np.float32)
    assert tour.problems_of_sums(add_sub.Sums(two, one, one + two, one)) == []
    assert tour.problems_of_sums(add_sub.Sums(two, one, one + two, two)) == ["the sums are wrong"]


@pytest.mark.parametrize(
    ("one", "other", "do_agree"),
    [
        (READ, [dataclasses.replace(line, confidence=line.confidence + 1e-6) for line in READ], True),
        (READ, [dataclasses.replace(line, confidence=0.5) for line in READ], False),
        (READ, READ[:-1], False),
        (np.array([1.0, 2.0]), np.array([1.0, 2.0]), True),
        (np.array([1.0, 2.0]), np.array([1.0]), False),
        ((1.0, "a"), (1.0, "b"), False),
        (READ[0], BOX, False),
        ([], None, False),
    ],
)
def test_answers_agree_up_to_rounding(one: Any, other: Any, do_agree: bool) -> None:
    assert tour.agree(one, other) is do_agree


def closed_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_without_a_server_both_addresses_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 and a sentence per protocol."""
    http, grpc = closed_address(), closed_address()
    assert tour.main(["--http", http, "--grpc", grpc]) == 1
    err = capsys.readouterr().err
    assert f"HTTP: no server to ask at {http}: " in err
    assert f"gRPC: no server to ask at {grpc}: " in err


class BrokenServer:
    """Replies no request."""

    def infer(self, *_: object) -> None:
        raise tour.InferenceServerException("Request for unknown model: 'add_sub' is not found")

    parameters = infer


def test_a_stop_that_fails_is_told_and_the_tour_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    for stop in tour.STOPS:
        answer, problems = tour.visit(BrokenServer(), stop, None)
        assert answer is None
        assert problems == [f"{stop.title}: Request for unknown model: 'add_sub' is not found"]
    assert capsys.readouterr().out.count("✗") == len(tour.STOPS)


def test_protocols_that_differ_are_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    """The second answer is printed as well then."""
    stop = tour.Stop("Counting", lambda _: 2.0, lambda answer: [f"counted {answer}"], lambda _: [])
    assert tour.visit(None, stop, 2.0) == (2.0, [])
    assert tour.visit(None, stop, 1.0)[1] == ["Counting: the two protocols brought different answers"]
    out = capsys.readouterr().out
    assert "the same answer" in out
    assert "counted 2.0" in out


@pytest.mark.parametrize(
    ("pieces", "whole", "problem"),
    [
        (["a", " b"], "a b", ""),
        (["a b"], "a b", "the stream had 1 pieces"),
        ([], "", "the stream had 0 pieces"),
        (["a", " b"], "a c", "the stream and the whole answer differ"),
    ],
)
def test_a_chat_is_a_stream_and_the_same_as_a_whole(pieces: list[str], whole: str, problem: str) -> None:
    answer = load_example("clients/chat").Answer(pieces, whole)
    assert tour.problems_of_chat(answer) == ([problem] if problem else [])
