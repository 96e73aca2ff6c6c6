"""The state machine of a rolling update, over a fleet that does what it says."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioton.fleet.rolling import Observed, RollingUpdate, UpdateState, Wanted

READY, WATCH = 60.0, 10.0


def update(total: int, **more: int) -> RollingUpdate:
    return RollingUpdate(total, 0.0, ready_seconds=READY, watch_seconds=WATCH, **more)


def test_one_more_of_the_new_then_one_fewer_of_the_old() -> None:
    machine = update(2)
    assert machine.step(Observed(2, 0, 2, 0), 0.0) == Wanted(2, 1)
    assert machine.step(Observed(2, 1, 2, 1), 1.0) == Wanted(2, 1)
    assert machine.wake_at() == 1.0 + WATCH
    assert machine.step(Observed(2, 1, 2, 1), 11.0) == Wanted(1, 1)
    assert machine.step(Observed(1, 1, 2, 1), 12.0) == Wanted(1, 1)  # the old one still drains
    assert machine.step(Observed(1, 1, 1, 1), 13.0) == Wanted(1, 2)
    assert machine.step(Observed(1, 2, 1, 2), 14.0) == Wanted(1, 2)
    assert machine.step(Observed(1, 2, 1, 2), 24.0) == Wanted(0, 2)
    assert machine.step(Observed(0, 2, 0, 2), 25.0) == Wanted(0, 2)
    assert machine.state is UpdateState.DONE


def test_a_failure_brings_the_old_ones_back_before_the_new_ones_go() -> None:
    machine = update(2)
    machine.step(Observed(2, 0, 2, 0), 0.0)
    machine.step(Observed(2, 1, 2, 1), 1.0)
    machine.step(Observed(2, 1, 1, 1), 11.0)
    assert machine.step(Observed(1, 1, 1, 2, "replica-4: it fails the probe"), 12.0) == Wanted(2, 1)
    assert machine.reason == "replica-4: it fails the probe"
    machine.step(Observed(2, 0, 2, 1), 13.0)
    assert not machine.is_over
    machine.step(Observed(2, 0, 2, 0), 14.0)
    assert machine.state is UpdateState.RETURNED


def test_a_new_replica_that_never_serves_turns_it_round() -> None:
    machine = update(1)
    machine.step(Observed(1, 0, 1, 1), 0.0)
    assert machine.wake_at() == READY
    assert machine.step(Observed(1, 0, 1, 1), READY) == Wanted(1, 0)
    assert machine.reason == "a new replica did not serve within 60 s"


def test_a_new_replica_that_stops_to_serve_while_it_is_watched_turns_it_round() -> None:
    machine = update(1)
    machine.step(Observed(1, 1, 1, 1), 0.0)
    assert machine.state is UpdateState.WATCHING
    assert machine.step(Observed(1, 0, 1, 1), 1.0) == Wanted(1, 0)
    assert machine.reason == "a new replica does not serve any more"


def test_the_replicas_of_a_canary_count() -> None:
    machine = update(3, already_new=2)
    assert machine.step(Observed(3, 2, 3, 2), 0.0) == Wanted(3, 2)
    assert machine.step(Observed(3, 2, 3, 2), WATCH) == Wanted(2, 2)


@dataclass
class Fleet:
    """Does at once what is wanted, but for replicas that drain or start for a while."""

    observed: Observed
    worst: int = field(init=False)

    def __post_init__(self) -> None:
        self.worst = self.observed.old

    def follow(self, wanted: Wanted, slow: bool) -> None:
        now = self.observed
        if slow:
            self.observed = replace(now, old_left=max(now.old_left, wanted.old), new_left=max(now.new_left, wanted.new))
        else:
            self.observed = Observed(wanted.old, wanted.new, wanted.old, wanted.new)
        self.worst = min(self.worst, self.observed.old + self.observed.new)


@given(total=st.integers(1, 5), slow=st.lists(st.booleans(), max_size=30), fails_at=st.integers(0, 60))
def test_it_ends_and_there_are_never_too_few(total: int, slow: list[bool], fails_at: int) -> None:
    machine, fleet = update(total), Fleet(Observed(total, 0, total, 0))
    for turn in range(200):
        if turn == fails_at:
            machine.abandon("a fault", float(turn))
        fleet.follow(machine.step(fleet.observed, float(turn)), turn < len(slow) and slow[turn])
        if machine.is_over:
            break
    assert machine.is_over
    assert fleet.observed.old + fleet.observed.new == total
    assert fleet.worst >= total
    if machine.state is UpdateState.RETURNED:
        assert fleet.observed.old == total
    else:
        assert fleet.observed.new == total


@pytest.mark.parametrize("state", [UpdateState.DONE, UpdateState.RETURNED])
def test_what_is_over_stays_over(state: UpdateState) -> None:
    machine = update(1)
    machine.state = state
    machine.abandon("too late", 1.0)
    machine.step(Observed(0, 0, 0, 0, "a failure"), 1.0)
    assert machine.state is state
