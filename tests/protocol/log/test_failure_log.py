"""The lines of failed requests: levels by cause, no flood, no forged lines, and no harm to the request."""

from __future__ import annotations

import logging

import pytest

from protocol import errors
from protocol.log.failure_log import LINES_PER_SECOND, FailedRequest, FailureLog
from protocol.messages import InferenceRequest

FAILED = FailedRequest("add_sub", "2", "request-7", 0.0125)


class Clock:
    def __init__(self) -> None:
        self.now = 5000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "protocol.log.failure_log")
    return caplog


def test_a_line_says_what_failed(lines: pytest.LogCaptureFixture) -> None:
    FailureLog(Clock()).note("HTTP infer", 500, errors.Internal("it broke"), lambda: FAILED)
    assert lines.messages == [
        "HTTP infer failed: model 'add_sub', version '2', id 'request-7', status 500, after 12.500 ms: it broke"
    ]


def test_what_is_not_known_is_left_out(lines: pytest.LogCaptureFixture) -> None:
    """Of a request that could not be read, and of one without a version."""
    log = FailureLog(Clock())
    log.note("gRPC ModelInfer", "UNAVAILABLE", errors.Unavailable("stopping"), FailedRequest)
    known = InferenceRequest("add_sub", [])
    log.note("gRPC ModelInfer", "UNAVAILABLE", errors.Unavailable("full"), lambda: FailedRequest.of(known, None))
    assert lines.messages == [
        "gRPC ModelInfer failed: model '', version 'latest', id '', status UNAVAILABLE: stopping",
        "gRPC ModelInfer failed: model 'add_sub', version 'latest', id '', status UNAVAILABLE: full",
    ]


@pytest.mark.parametrize("kind", errors.KINDS.values(), ids=list(errors.KINDS))
def test_the_level_follows_the_cause(lines: pytest.LogCaptureFixture, kind: type[errors.ServerError]) -> None:
    expected = logging.DEBUG
    if kind in (errors.ServerError, errors.Internal):
        expected = logging.ERROR
    elif issubclass(kind, errors.Unavailable | errors.DeadlineExceeded):
        expected = logging.WARNING
    FailureLog(Clock()).note("HTTP infer", 0, kind("why"), lambda: FAILED)
    assert [record.levelno for record in lines.records] == [expected]


def test_a_defect_is_an_error(lines: pytest.LogCaptureFixture) -> None:
    FailureLog(Clock()).note("HTTP infer", 500, KeyError("lost"), lambda: FAILED)
    (record,) = lines.records
    assert record.levelno == logging.ERROR
    assert record.getMessage().endswith(": KeyError: 'lost'")


def test_a_level_that_is_off_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Neither a description nor a token: what is switched on later begins with a full bucket."""
    log = FailureLog(Clock())
    caplog.set_level(logging.INFO, "protocol.log.failure_log")
    for _ in range(100):
        log.note("HTTP infer", 400, errors.InvalidArgument("no"), lambda: pytest.fail("described"))
    log.close()
    assert not caplog.records
    caplog.set_level(logging.DEBUG, "protocol.log.failure_log")
    log.note("HTTP infer", 400, errors.InvalidArgument("no"), lambda: FAILED)
    assert len(caplog.records) == 1


def test_a_flood_of_failures_is_counted_and_not_written(lines: pytest.LogCaptureFixture) -> None:
    """Only so many lines of a kind in a second; the next one says how many were left out, and a flood of one kind
    hides no other."""
    clock = Clock()
    log = FailureLog(clock)
    described = 0

    def describe() -> FailedRequest:
        nonlocal described
        described += 1
        return FAILED

    for _ in range(1000):
        log.note("HTTP infer", 400, errors.InvalidArgument("no"), describe)
    assert len(lines.records) == described == LINES_PER_SECOND
    log.note("HTTP infer", 500, errors.Internal("broken"), describe)
    assert lines.messages[-1].endswith("status 500, after 12.500 ms: broken")
    lines.clear()
    clock.now += 1 / LINES_PER_SECOND
    log.note("HTTP infer", 400, errors.InvalidArgument("again"), describe)
    left_out, line = lines.messages
    assert left_out == f"{1000 - LINES_PER_SECOND} more requests failed with INVALID_ARG, whose lines were left out"
    assert line.endswith(": again")
    assert [record.levelno for record in lines.records] == [logging.DEBUG] * 2


def test_a_second_has_at_most_twice_the_rate(lines: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = FailureLog(clock)
    for _ in range(10_000):
        log.note("HTTP infer", 503, errors.Unavailable("full"), lambda: FAILED)
        clock.now += 0.0001
    assert len([line for line in lines.messages if "failed:" in line]) <= 2 * LINES_PER_SECOND


def test_the_end_says_what_was_left_out(lines: pytest.LogCaptureFixture) -> None:
    log = FailureLog(Clock())
    for _ in range(LINES_PER_SECOND + 3):
        log.note("HTTP infer", 500, errors.Internal("broken"), lambda: FAILED)
    lines.clear()
    log.close()
    log.close()
    assert lines.messages == ["3 more requests failed with INTERNAL, whose lines were left out"]
    assert lines.records[0].levelno == logging.ERROR


@pytest.mark.parametrize(
    "hostile",
    [
        "a\nE0203 04:05:06.007008 1 x.py:1] forged",
        "\r\x1b[2J\x00\x7f\x85\u2028",
        "\u202egnirts\ufeff",
        "\udc80\ud800",
        "%s%d",
    ],
)
def test_no_text_can_forge_a_line(lines: pytest.LogCaptureFixture, hostile: str) -> None:
    """Whether it is a name, an id or an error's text, and whatever then writes the line."""
    failed = FailedRequest(hostile, hostile, hostile, 0.001)
    FailureLog(Clock()).note("HTTP infer", 400, errors.InvalidArgument(hostile), lambda: failed)
    (line,) = lines.messages
    assert line.isprintable()
    assert line.count("failed:") == 1


def test_an_id_cannot_pretend_to_be_another_field(lines: pytest.LogCaptureFixture) -> None:
    failed = FailedRequest("m", "1", "x', status 200: fine", None)
    FailureLog(Clock()).note("HTTP infer", 400, errors.InvalidArgument("no"), lambda: failed)
    assert """id "x', status 200: fine", status 400: no""" in lines.messages[0]


def test_a_text_of_many_lines_becomes_one(lines: pytest.LogCaptureFixture) -> None:
    """As of a model's exception with its traceback."""
    error = errors.Internal("it broke\n\nAt:\n  model.py(7): execute\n")
    FailureLog(Clock()).note("HTTP infer", 500, error, FailedRequest)
    assert lines.messages[0].endswith(": it broke At: model.py(7): execute")


def test_long_texts_are_cut(lines: pytest.LogCaptureFixture) -> None:
    long = "\x00" * 10_000_000
    FailureLog(Clock()).note("HTTP infer", 400, errors.InvalidArgument(long), lambda: FailedRequest(long, long, long))
    assert len(lines.messages[0]) < 5000


def test_a_failure_of_the_log_harms_no_request(lines: pytest.LogCaptureFixture) -> None:
    def describe() -> FailedRequest:
        raise ValueError("a defect")

    FailureLog(Clock()).note("HTTP infer", 500, errors.Internal("broken"), describe)
    (record,) = lines.records
    assert record.exc_info is not None
