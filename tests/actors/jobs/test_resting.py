"""A thread that works for a part of the time."""

from __future__ import annotations

import time

import pytest

from actors.jobs.resting import rested


class Clock:
    """Of one thread, which only works and sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.worked = self.slept = 0.0
        monkeypatch.setattr(time, "thread_time", lambda: self.worked)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


def test_it_sleeps_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    seen = []
    for number in rested(range(5), 0.25):
        clock.worked += 0.001 * number
        seen.append(number)
    assert seen == [0, 1, 2, 3, 4]
    assert clock.slept == pytest.approx(3 * clock.worked)


def test_with_all_of_the_time_it_does_not_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    for _ in rested(range(5), 1.0):
        clock.worked += 0.001
    assert clock.slept == 0


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_what_is_left_can_be_read_on(share: float) -> None:
    rows = (number for number in range(4))
    for number in rested(rows, share):
        if number == 1:
            break
    assert list(rested(rows, share)) == [2, 3]
