"""Which steps of sequences share a batch, by the strategies `direct` and `oldest`."""

from __future__ import annotations

import math

import pytest

from actors.scheduling.sequence.policy import SequencePolicy
from actors.scheduling.sequence.records import Step
from repository.model_config import StrategyDirect, StrategyOldest
from tests.actors.scheduling.sequence.sequences import START, Caller, Instances, add, config, instances

CANDIDATES = StrategyOldest(max_candidate_sequences=4)


def test_direct_has_a_row_for_each_slot_below_the_highest() -> None:
    on = instances(max_batch_size=4)
    for number in (1, 2, 3, 4):
        add(on, f"s{number}", number, start=START)
    assert on.batches() == [["s1", "s2", "s3", "s4"]]
    add(on, "again 3", 3)
    assert on.batches() == [[None, None, "again 3"]]
    add(on, "again 2", 2)
    add(on, "again 4", 4)
    assert on.batches() == [[None, "again 2", None, "again 4"]]


def test_direct_runs_one_shape_at_a_time_the_one_that_has_waited_longest_first() -> None:
    on = instances()
    wide, narrow = ((8,),), ((2,),)
    for number, key, arrival in ((1, narrow, 2.0), (2, wide, 1.0), (3, narrow, 3.0)):
        item = Caller(number, start=START, id=f"s{number}", key=key, arrival=arrival).item
        on.policy.add(item, arrival)
    assert on.batches(now=3.0) == [[None, "s2"], ["s1", None, "s3"]]


# delay in µs, utilisation, slots with a request, age in seconds → does it run; when to ask again
UTILISATION = {
    "neither": (0, 0.0, 1, 0.0, True, math.inf),
    "a delay alone has no effect": (1_000_000, 0.0, 1, 0.0, True, math.inf),
    "a share alone has no effect": (0, 0.5, 1, 0.0, True, math.inf),
    "too few wait": (1_000_000, 0.5, 1, 0.0, False, 1.0),
    "enough go at once": (1_000_000, 0.5, 2, 0.0, True, math.inf),
    "a share between two slots needs the higher": (1_000_000, 0.3, 1, 0.0, False, 1.0),
    "all slots": (1_000_000, 1.0, 3, 0.5, False, 1.0),
    "as old as the delay they go": (1_000_000, 1.0, 3, 1.0, True, math.inf),
}


@pytest.mark.parametrize("case", UTILISATION.values(), ids=UTILISATION.keys())
def test_minimum_slot_utilization(case: tuple[int, float, int, float, bool, float]) -> None:
    delay_us, share, count, age, runs, wake_at = case
    direct = StrategyDirect(max_queue_delay_microseconds=delay_us, minimum_slot_utilization=share)
    on = instances(direct=direct, idle_us=10_000_000)
    for number in range(1, count + 1):
        add(on, f"s{number}", number, start=START)
    assert (on.begin(now=age) is not None) is runs
    assert on.policy.wake_at(["a"]) == pytest.approx(wake_at)


def test_no_step_waits_for_slots_that_a_step_of_another_shape_has_passed() -> None:
    direct = StrategyDirect(max_queue_delay_microseconds=1_000_000, minimum_slot_utilization=1.0)
    on = instances(direct=direct, idle_us=10_000_000)
    for number, key, arrival in ((1, ((2,),), 0.0), (2, ((2,),), 0.1), (3, ((8,),), 0.2)):
        item = Caller(number, start=START, id=f"s{number}", key=key, arrival=arrival).item
        on.policy.add(item, arrival)
    assert on.begin(now=0.2) == ["s1", "s2"]
    on.end()
    assert on.begin(now=0.3) is None, "the latest waits for company of its own"
    assert on.policy.wake_at(["a"]) == pytest.approx(1.2)


def test_a_share_of_single_precision_counts_whole_slots() -> None:
    """0.3 as a 32-bit number is a little more than 0.3; 3 of 10 slots are enough all the same."""
    direct = StrategyDirect(max_queue_delay_microseconds=1_000_000, minimum_slot_utilization=0.30000001192092896)
    on = instances(max_batch_size=10, direct=direct)
    for number in (1, 2, 3):
        add(on, f"s{number}", number, start=START)
    assert on.begin() is not None


def test_oldest_batches_candidates_with_one_step_of_each() -> None:
    on = instances(max_batch_size=2, oldest=StrategyOldest(max_candidate_sequences=3))
    for number in (1, 2, 3, 4):
        add(on, f"s{number}", number, start=START, end=number == 3)
        add(on, f"s{number} too", number) if number != 3 else None
    assert on.begin() == ["s1", "s2"]
    on.end()
    assert on.begin() == ["s3", "s1 too"]  # s3 ends: s4 is a candidate now
    on.end()
    assert on.batches() == [["s2 too", "s4"], ["s4 too"]]


def test_oldest_forms_batches_by_the_dynamic_batchers_rules() -> None:
    oldest = StrategyOldest(
        max_candidate_sequences=8, preferred_batch_size=(2,), max_queue_delay_microseconds=1_000_000
    )
    on = instances(oldest=oldest)
    add(on, "s1", 1, start=START)
    assert on.begin(now=0.5) is None
    assert on.policy.wake_at(["a"]) == pytest.approx(1.0)
    assert on.policy.wake_at([]) == math.inf
    add(on, "s2", 2, start=START, now=0.5)
    assert on.begin(now=0.5) == ["s1", "s2"]


def test_oldest_without_a_number_of_candidates_has_as_many_as_rows() -> None:
    on = instances(max_batch_size=2, oldest=StrategyOldest())
    for number in (1, 2, 3):
        add(on, f"s{number}", number, start=START)
    assert on.batches() == [["s1", "s2"]]


@pytest.mark.parametrize("oldest", [None, CANDIDATES], ids=["direct", "oldest"])
def test_states_of_other_shapes_do_not_share_a_batch(oldest: StrategyOldest | None) -> None:
    shapes = {1: (1,), 2: (2,), 3: (1,)}

    def key(step: Step) -> tuple[tuple[int, ...], ...]:
        assert isinstance(step.sequence.id, int)
        return (shapes[step.sequence.id],)

    on = Instances(SequencePolicy(config(oldest=oldest), key_of_states=key), "a")
    for number in (1, 2, 3):
        add(on, f"s{number}", number, start=START)
    rows = [[row for row in batch if row is not None] for batch in on.batches()]
    assert rows == [["s1", "s3"], ["s2"]]
