"""The `date` header."""

from __future__ import annotations

import time

import pytest

from protocol.http.date import DateHeader


def test_it_is_that_of_the_second_whichever_way_the_clock_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    date = DateHeader()
    for now, second in (
        (100.0, b"40"),
        (100.999, b"40"),
        (101.0, b"41"),
        (200.5, b"20"),
        (99.9, b"39"),
        (100.0, b"40"),
    ):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        minute = b"03" if now >= 180 else b"01"
        value = b"Thu, 01 Jan 1970 00:%b:%b GMT" % (minute, second)
        assert date.packed() == bytes((len(value),)) + value
        assert date.line() == b"date: %b\r\n\r\n" % value
