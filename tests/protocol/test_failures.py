"""Defects of callbacks: counted each, and logged with their tracebacks, but not so often that the log drowns."""

from __future__ import annotations

import logging

import pytest

from protocol.failures import CallbackFailures


def test_each_is_counted_and_the_first_of_a_place_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = CallbackFailures()
    with caplog.at_level(logging.ERROR):
        for _ in range(100):
            failures.note("poller", ZeroDivisionError("a"), "a connection ends")
        with failures.noted("timer", "it is late"):
            raise KeyError("b")
    assert failures.counts() == {"poller": 100, "timer": 1}
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["a connection ends", "it is late"]
    assert [record.exc_info and record.exc_info[0] for record in caplog.records] == [ZeroDivisionError, KeyError]


def test_how_many_were_not_logged_is_said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = CallbackFailures()
    now = [100.0]
    monkeypatch.setattr("protocol.failures.time.monotonic", lambda: now[0])
    for _ in range(5):
        failures.note("poller", ValueError(), "x")
    now[0] += 10
    failures.note("poller", ValueError(), "x")
    assert len(caplog.records) == 2
    assert "4 more like it" in caplog.text
