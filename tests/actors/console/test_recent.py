"""Recent errors and the tail of the log: the last ones, cut, in any thread, whatever a message does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from actors.console.recent import MOST_ERRORS, MOST_LINES, LogTail, RecentErrors
from protocol.console.records import LONGEST_TEXT
from protocol.errors import InvalidArgument
from protocol.log.failure_log import FailedRequest, FailureLog


@pytest.fixture
def tail() -> Iterator[LogTail]:
    made, logger = LogTail(), logging.getLogger("trioton")
    logger.addHandler(made)
    level, logger.level = logger.level, logging.INFO
    yield made
    logger.setLevel(level)
    logger.removeHandler(made)


def test_the_log_is_bounded_and_read_from_where_one_was(tail: LogTail) -> None:
    logger = logging.getLogger("trioton.model")
    for number in range(MOST_LINES + 10):
        logger.info("line %d", number)
    logger.warning("x" * 100_000)
    rows = tail.after(0)
    assert len(rows) == MOST_LINES
    assert (rows[-1].level, rows[-1].logger, len(rows[-1].text)) == ("WARNING", "trioton.model", LONGEST_TEXT + 1)
    assert tail.after(rows[-3].number)[0].text == f"line {MOST_LINES + 9}"
    assert tail.after(rows[-1].number) == []


def test_a_traceback_is_shown_and_a_bad_message_is_not_fatal(tail: LogTail, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger = logging.getLogger("trioton.model")
    logger.info("%d", "no number")
    try:
        raise KeyError("missing")
    except KeyError:
        logger.exception("failed")
    (row,) = tail.after(0)
    assert "KeyError: 'missing'" in row.text


def test_all_threads_are_heard(tail: LogTail) -> None:
    logger = logging.getLogger("trioton.model")

    def talk() -> None:
        for _ in range(50):
            logger.info("x")

    threads = [threading.Thread(target=talk) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [row.number for row in tail.after(0)] == list(range(1, 201))


def test_errors_are_bounded_and_cut() -> None:
    log, recent = FailureLog(), RecentErrors()
    log.on_failure = recent.note
    for number in range(MOST_ERRORS + 5):
        log.note("HTTP infer", 400, InvalidArgument(f"{number} {'x' * 10_000}"), lambda: FailedRequest("m", "1", "id"))
    rows = recent.after(0)
    assert len(rows) == MOST_ERRORS
    assert (rows[-1].number, rows[-1].model, rows[-1].id, rows[-1].kind) == (
        MOST_ERRORS + 5, "m", "id", "INVALID_ARG",
    )  # fmt: skip
    assert len(rows[-1].text) == LONGEST_TEXT + 1
    assert recent.after(MOST_ERRORS + 4)[0].text.startswith(f"{MOST_ERRORS + 4} ")


def test_a_failure_that_cannot_be_described_is_no_failure_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog()
    log.on_failure = RecentErrors().note
    log.note("HTTP infer", 400, InvalidArgument("x"), lambda: FailedRequest(1 / 0))  # type: ignore[arg-type]
    assert "could not be kept" in caplog.text
