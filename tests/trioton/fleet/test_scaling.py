"""The scaling policy: when, by how much, and why."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trioton.fleet.scaling import Bounds, Change, ScalingPolicy


def policy(least: int = 1, most: int = 8) -> ScalingPolicy:
    return ScalingPolicy("the queue", "", 4.0, Bounds(least, most), up_cooldown=10.0, down_cooldown=60.0)


def test_it_scales_in_proportion_and_says_why() -> None:
    change = policy().decide(10.0, 2, 0.0)
    assert change == Change(5, "scaling from 2 to 5 replicas (bounds 1 to 8): the queue is 10, above the target of 4")


def test_near_the_target_nothing_happens() -> None:
    assert policy().decide(4.3, 4, 0.0) is None
    assert policy().decide(3.7, 4, 1000.0) is None


def test_bounds_hold() -> None:
    change = policy(most=3).decide(1000.0, 2, 0.0)
    assert change is not None
    assert change.replicas == 3
    assert policy(most=3).decide(1000.0, 3, 0.0) is None
    assert policy(least=2).decide(0.0, 2, 1000.0) is None


def test_replicas_are_added_after_the_cooldown() -> None:
    made = policy()
    assert made.decide(8.0, 2, 0.0) is not None
    assert made.decide(8.0, 4, 9.0) is None
    assert made.decide(8.0, 4, 10.0) is not None


def test_one_replica_is_ended_when_fewer_were_enough_all_the_time() -> None:
    made = policy()
    assert made.decide(1.0, 4, 0.0) is None
    assert made.decide(2.0, 4, 30.0) is None
    change = made.decide(1.0, 4, 60.0)
    assert change is not None
    assert change.replicas == 3
    assert change.reason.endswith("below the target of 4 for 60 s, when 2 would have been enough")
    assert made.decide(1.0, 3, 61.0) is None


def test_a_peak_begins_the_wait_anew() -> None:
    made = policy()
    made.decide(1.0, 4, 0.0)
    made.decide(4.0, 4, 50.0)
    assert made.decide(1.0, 4, 60.0) is None
    assert made.decide(1.0, 4, 119.0) is None
    assert made.decide(1.0, 4, 120.0) is not None


def test_a_change_by_hand_begins_the_cooldown() -> None:
    made = policy()
    made.note_change(5.0)
    assert made.decide(100.0, 2, 14.0) is None
    assert made.decide(100.0, 2, 15.0) is not None


@given(signal=st.floats(0, 1e6), replicas=st.integers(1, 8), times=st.lists(st.floats(0, 1e4), max_size=20))
def test_it_never_leaves_its_bounds(signal: float, replicas: int, times: list[float]) -> None:
    made = policy(2, 6)
    for now in sorted(times):
        change = made.decide(signal, replicas, now)
        if change is not None:
            assert 2 <= change.replicas <= 6 or change.replicas == replicas - 1
            replicas = change.replicas
