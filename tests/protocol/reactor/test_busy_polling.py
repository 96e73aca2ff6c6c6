"""Busy polling, by a clock of the test: when the poller looks again and again, and when it sleeps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from protocol.reactor import busy_polling
from protocol.reactor.busy_polling import BusyPolling, Events

LIMIT = 200e-6
LOOK = 1e-6  # seconds that a look takes
EVENTS = [(3, 1)]


class System:
    """Something happens `after` so many seconds of each wait. `interrupted_after`: a look takes a millisecond then,
    since another process has the core; or, with `is_by_thread`, a thread of its own the interpreter."""

    def __init__(self) -> None:
        self.now = 5.0
        self.after = 50e-6
        self.interrupted_after = 1.0
        self.is_by_thread = False
        self.preempted = 0
        self.looks = 0
        self.sleeps: list[float] = []
        self._began = 0.0

    def look(self, timeout: float, most: int) -> Events:
        assert most == 7
        at = self._began + self.after
        if timeout:
            self.sleeps.append(timeout)
            self.now = max(self.now, min(at, self.now + timeout))
        else:
            self.looks += 1
            is_interrupted = self.now - self._began >= self.interrupted_after
            self.preempted += is_interrupted and not self.is_by_thread
            self.now += 1e-3 if is_interrupted else LOOK
        return list(EVENTS) if self.now >= at else []

    def wait(self, busy: BusyPolling, timeout: float = 10.0) -> tuple[Events, int, int]:
        """What was found, in how many looks and sleeps."""
        self._began, self.looks = self.now, 0
        self.sleeps.clear()
        return busy.wait(timeout, 7), self.looks, len(self.sleeps)


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    made = System()
    monkeypatch.setattr(busy_polling, "time", SimpleNamespace(perf_counter=lambda: made.now))
    return made


@pytest.fixture
def busy(system: System) -> BusyPolling:
    """After a thousand short waits."""
    made = BusyPolling(system.look, lambda: system.preempted)
    made.limit = LIMIT
    for _ in range(1000):
        system.wait(made)
    return made


def test_it_looks_where_waits_have_been_short(system: System, busy: BusyPolling) -> None:
    found, looks, sleeps = system.wait(busy)
    assert (found, sleeps) == (EVENTS, 0)
    assert looks == pytest.approx(system.after / LOOK, abs=2)


def test_a_new_one_sleeps_until_it_knows_better(system: System) -> None:
    busy = BusyPolling(system.look)
    busy.limit = LIMIT
    assert system.wait(busy) == (EVENTS, 0, 1)
    assert any(system.wait(busy)[1] for _ in range(100))


def test_without_a_limit_it_always_sleeps(system: System) -> None:
    busy = BusyPolling(system.look)
    assert {system.wait(busy)[1:] for _ in range(1000)} == {(0, 1)}
    assert system.sleeps == [10.0]


def test_it_sleeps_when_it_has_looked_for_so_long(system: System, busy: BusyPolling) -> None:
    system.after = 3.0
    found, looks, sleeps = system.wait(busy)
    assert (found, sleeps) == (EVENTS, 1)
    assert looks == pytest.approx(LIMIT / LOOK, abs=2)
    assert system.sleeps == [pytest.approx(10.0 - LIMIT, abs=3 * LOOK)]


@pytest.mark.parametrize("timeout", [20e-6, 1e-3])
def test_it_waits_no_longer_than_it_may(system: System, busy: BusyPolling, timeout: float) -> None:
    system.after = 3.0
    began = system.now
    assert system.wait(busy, timeout)[0] == []
    assert system.now - began == pytest.approx(timeout, abs=3 * LOOK)


def test_it_sleeps_at_once_where_waits_have_become_long(system: System, busy: BusyPolling) -> None:
    system.after = 5e-3
    looks = [system.wait(busy)[1] for _ in range(100)]
    assert looks[0] > 0
    assert looks[20:] == [0] * 80
    system.after = 50e-6
    assert any(system.wait(busy)[1] for _ in range(100))


def test_it_sleeps_for_a_while_where_another_process_wants_the_core(system: System, busy: BusyPolling) -> None:
    system.interrupted_after = 20e-6
    system.after = 100e-6
    _, looks, _ = system.wait(busy)
    assert looks == pytest.approx(20, abs=2)
    system.interrupted_after = 1.0
    began = system.now
    while system.wait(busy)[1] == 0:
        assert system.now - began < 0.1
    assert system.now - began > 0.01


def test_it_soon_tries_again_where_a_thread_of_its_own_wants_the_interpreter(system: System, busy: BusyPolling) -> None:
    """For all of a longer while each request would come a wake-up later."""
    system.interrupted_after, system.is_by_thread = 20e-6, True
    system.after = 100e-6
    system.wait(busy)
    system.interrupted_after = 1.0
    began = system.now
    while system.wait(busy)[1] == 0:
        assert system.now - began < 0.01


def test_it_is_told_how_often_the_core_was_taken() -> None:
    assert BusyPolling(lambda timeout, most: [])._times_preempted() >= 0


def test_the_largest_limit_of_those_that_run_holds() -> None:
    """Two servers of one run wait in the same place; the one that ends takes its limit along, whichever began first."""
    busy = BusyPolling(lambda timeout, most: [])
    assert busy.limit == 0
    first, second = busy.limited_to(200e-6), busy.limited_to(0.0)
    with first:
        with second:
            assert busy.limit == 200e-6
        with busy.limited_to(300e-6):
            assert busy.limit == 300e-6
        assert busy.limit == 200e-6
    assert busy.limit == 0
    first, second = busy.limited_to(200e-6), busy.limited_to(100e-6)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert busy.limit == 100e-6
    second.__exit__(None, None, None)
    assert busy.limit == 0
