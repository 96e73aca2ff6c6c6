"""Loop lag: what holds the loop is measured, and under a flag named."""

from __future__ import annotations

import logging
import threading
import time

import pytest
import trio
from trio.testing import MockClock

from trioton.loop_lag import BOUNDS_SECONDS, PERIOD_SECONDS, LoopLag, LoopWatchdog


async def test_an_idle_loop_is_never_late(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    lag = LoopLag()
    nursery.start_soon(lag.run)
    await trio.sleep(10.5 * PERIOD_SECONDS)
    snapshot = lag.snapshot()
    assert snapshot.cumulative == (10,) * (len(BOUNDS_SECONDS) + 1)
    assert snapshot.total < 0.001


async def test_what_holds_the_loop_is_measured(mock_clock: MockClock, nursery: trio.Nursery) -> None:
    """By the loop's clock, which goes on while the task that is held waits for its turn."""
    lag = LoopLag()
    nursery.start_soon(lag.run)
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(PERIOD_SECONDS + 0.2)
    await trio.testing.wait_all_tasks_blocked()
    snapshot = lag.snapshot()
    assert snapshot.total == pytest.approx(0.2)
    assert dict(zip(snapshot.bounds, snapshot.cumulative, strict=False))[0.1] == 0


def compute_at_length() -> None:
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        pass


async def hog(heard: threading.Event) -> None:
    while not heard.is_set():
        compute_at_length()
        await trio.sleep(0.01)


async def test_the_watchdog_names_the_task_and_the_code() -> None:
    heard, told = threading.Event(), []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:  # in the watchdog's thread
            told.append(record.getMessage())
            heard.set()

    log, listener = logging.getLogger("trioton.loop_lag"), Listener()
    log.addHandler(listener)
    before = threading.active_count()
    try:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(LoopWatchdog(0.02).run)
                nursery.start_soon(hog, heard, name="the hog")
                await trio.to_thread.run_sync(heard.wait)
                nursery.cancel_scope.cancel()
    finally:
        log.removeHandler(listener)
    assert "ms by task 'the hog': compute_at_length (" in told[0]
    assert "hog (" in told[0]
    assert threading.active_count() <= before + 3, "threads of Trio's, which end by themselves"


async def test_a_loop_that_waits_is_not_held(caplog: pytest.LogCaptureFixture) -> None:
    """However long it waits for input: the watchdog's own task wakes it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(LoopWatchdog(1.0).run)
        await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    assert not caplog.records
