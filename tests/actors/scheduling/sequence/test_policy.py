"""The sequence batcher's rules, by examples, under a clock of the test's own."""

from __future__ import annotations

import logging
import math

import pytest

from actors.scheduling.sequence.policy import SequencePolicy
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from repository.model_config import StrategyOldest
from tests.actors.scheduling.sequence.sequences import END, START, Caller, add, config, id_control, ids, instances

CANDIDATES = StrategyOldest(max_candidate_sequences=4)


# What is refused


def test_a_batch_size_of_one_is_a_must() -> None:
    text = "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher"
    with pytest.raises(InvalidArgument) as caught:
        add(instances(), "r", start=START, size=2)
    assert caught.value.message == text


@pytest.mark.parametrize("nothing", [0, ""])
def test_a_correlation_id_is_a_must(nothing: int | str) -> None:
    text = "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
    with pytest.raises(InvalidArgument) as caught:
        add(instances(), "r", nothing, start=START)
    assert caught.value.message == text


def test_the_first_request_needs_the_start_flag_also_after_the_end() -> None:
    on = instances()
    text = (
        "inference request for sequence 7 to model 'm' must specify the START flag on the first request of the sequence"
    )
    for _ in range(2):
        with pytest.raises(InvalidArgument) as caught:
            add(on, "r", 7)
        assert caught.value.message == text
        add(on, "only", 7, start=START, end=END)
    assert on.policy.waiting == 2


@pytest.mark.parametrize(
    ("expected", "id", "given"),
    [(DataType.UINT64, "seven", "BYTES"), (DataType.INT32, "seven", "BYTES"), (DataType.BYTES, 7, "UINT64")],
)
def test_an_id_that_is_no_value_for_the_control_is_refused(expected: DataType, id: int | str, given: str) -> None:
    on = instances(control_input=(id_control(expected),))
    with pytest.raises(InvalidArgument) as caught:
        add(on, "r", id, start=START)
    assert caught.value.message == (
        f"[request id: r] sequence batching control 'CORRID' data-type is '{given}', but model 'm' expects "
        f"'{expected.name}'"
    )


def test_number_and_text_are_different_ids() -> None:
    on = instances()
    add(on, "number", 7, start=START)
    with pytest.raises(InvalidArgument, match="must specify the START flag"):
        add(on, "text", "7")


# Slots


def test_sequences_take_the_lowest_free_slot_of_any_instance() -> None:
    on = instances("a", "b", max_batch_size=2)
    for number in range(1, 6):
        add(on, f"s{number}", number, start=START)
    assert on.begin("a") == ["s1", "s3"]
    assert on.begin("b") == ["s2", "s4"]
    assert on.policy.waiting == 1  # s5 is in the backlog


@pytest.mark.parametrize("oldest", [None, StrategyOldest(max_candidate_sequences=2**31 - 1)])
def test_slots_are_made_as_they_are_needed(oldest: StrategyOldest | None) -> None:
    """However many a configuration has: with all of them made at once, this test would need more memory than there
    is."""
    on = instances("a", "b", max_batch_size=2**31 - 1, oldest=oldest)
    for number in range(1, 6):
        add(on, f"s{number}", number, start=START)
    assert on.begin("a") == ["s1", "s3", "s5"]
    assert on.begin("b") == ["s2", "s4"]


def test_a_model_without_batching_has_one_slot() -> None:
    on = instances(max_batch_size=0)
    add(on, "s1", 1, start=START)
    add(on, "s2", 2, start=START)
    add(on, "s1 end", 1, end=END)
    assert on.batches() == [["s1"], ["s1 end"], ["s2"]]


def test_a_sequence_stays_in_its_slot_and_its_requests_in_order() -> None:
    on = instances("a", "b", max_batch_size=2)
    add(on, "s1", 1, start=START)
    assert on.begin("a") == ["s1"]
    for number in range(3):
        add(on, f"{number}", 1)
    assert on.batches("b") == []
    on.end("a")
    assert on.batches("a") == [["0"], ["1"], ["2"]]


def test_the_end_frees_the_slot_when_it_is_handed_over() -> None:
    on = instances(max_batch_size=1)
    add(on, "old", 1, start=START)
    add(on, "new", 2, start=START)
    add(on, "old end", 1, end=END)
    assert on.begin() == ["old"]
    on.end()
    assert on.begin() == ["old end"]
    add(on, "newer", 3, start=START)  # behind the one that has the slot by now
    on.end()
    assert on.begin() == ["new"]


def test_an_id_can_start_anew_while_its_end_still_waits() -> None:
    on = instances(max_batch_size=2)
    add(on, "first", 1, start=START)
    add(on, "first end", 1, end=END)
    add(on, "second", 1, start=START)
    assert on.batches() == [["first"], ["first end"], [None, "second"]], "a model may know sequences by their ids"


def test_the_backlog_moves_in_order_and_with_all_its_requests() -> None:
    on = instances(max_batch_size=1)
    add(on, "a", 1, start=START)
    add(on, "b", 2, start=START)
    add(on, "c", 3, start=START)
    add(on, "b end", 2, end=END)
    add(on, "c end", 3, end=END)
    add(on, "a end", 1, end=END)
    assert on.batches() == [["a"], ["a end"], ["b"], ["b end"], ["c"], ["c end"]]


def test_a_new_instance_takes_from_the_backlog() -> None:
    on = instances("a", max_batch_size=1)
    for number in (1, 2, 3):
        add(on, f"s{number}", number, start=START)
    on.policy.add_instance("b")
    assert (on.begin("a"), on.begin("b")) == (["s1"], ["s2"])


def test_start_on_a_live_id_goes_on_in_the_same_slot(caplog: pytest.LogCaptureFixture) -> None:
    on = instances("a", "b")
    add(on, "old", 1, start=START)
    add(on, "old too", 1)
    with caplog.at_level(logging.WARNING):
        add(on, "new", 1, start=START)
    add(on, "new end", 1, end=END)
    assert on.batches("b") == []
    assert on.batches("a") == [["old"], ["old too"], ["new"], ["new end"]]
    assert [record.getMessage() for record in caplog.records] == [
        "sequence 1 for model 'm' has a conflict. The previous sequence did not end before this sequence start. "
        "Previous sequence will be terminated early."
    ]


# Time


def test_an_idle_sequence_is_forgotten_and_the_backlog_moves_in() -> None:
    on = instances(max_batch_size=1)
    add(on, "one", 1, start=START)
    add(on, "two", 2, start=START, now=0.5)
    assert on.batches(now=0.5) == [["one"]]
    assert on.policy.wake_at(["a"]) == pytest.approx(1.5)
    assert on.policy.take_expired(1.4) == []
    assert on.batches(now=1.4) == []
    assert on.policy.take_expired(1.5) == []
    assert on.batches(now=1.5) == [["two"]]
    with pytest.raises(InvalidArgument, match="must specify the START flag"):
        add(on, "late", 1, now=1.5)


def test_a_sequence_is_not_idle_while_something_of_it_waits_or_runs() -> None:
    on = instances(max_batch_size=1)
    add(on, "one", 1, start=START)
    assert on.begin(now=0.0) == ["one"]
    assert on.policy.wake_at([]) == math.inf
    on.policy.take_expired(5.0)
    on.end(now=5.0)
    add(on, "two", 1, now=5.9)
    on.policy.take_expired(9.0)
    assert on.batches(now=9.0) == [["two"]]
    assert on.policy.wake_at([]) == pytest.approx(10.0)


def test_the_backlog_does_not_become_idle() -> None:
    on = instances(max_batch_size=1)
    add(on, "one", 1, start=START)
    add(on, "two", 2, start=START)
    assert on.begin() == ["one"]
    on.policy.take_expired(100.0)
    on.end(now=100.0)
    on.policy.take_expired(101.0)
    assert on.batches(now=101.0) == [["two"]]


def test_a_timeout_in_the_backlog_ends_the_whole_sequence() -> None:
    on = instances(max_batch_size=1)
    add(on, "one", 1, start=START)
    on.begin()
    add(on, "two", 2, start=START, timeout_us=500_000)
    add(on, "two too", 2, timeout_us=100_000)
    add(on, "three", 3, start=START)
    assert on.policy.wake_at([]) == pytest.approx(0.1)
    assert ids(on.policy.take_expired(0.09)) == []
    assert ids(on.policy.take_expired(0.1)) == ["two", "two too"]
    assert on.policy.wake_at([]) == math.inf
    with pytest.raises(InvalidArgument, match="must specify the START flag"):
        add(on, "two late", 2, now=0.2)
    assert on.policy.waiting == 1


def test_deadlines_that_end_at_once_end_each_request_once() -> None:
    on = instances(max_batch_size=1)
    add(on, "one", 1, start=START)
    on.begin()
    add(on, "two", 2, start=START, timeout_us=100_000)
    add(on, "two too", 2, timeout_us=100_000)
    assert ids(on.policy.take_expired(1.0)) == ["two", "two too"]


def test_a_timeout_counts_only_in_the_backlog() -> None:
    on = instances(max_batch_size=1)
    add(on, "one", 1, start=START, end=END)
    add(on, "two", 2, start=START, timeout_us=500_000)
    assert on.begin() == ["one"]  # two has the slot
    assert on.policy.take_expired(1.0) == []
    on.end(now=1.0)
    assert on.begin(now=1.0) == ["two"]


# Requests whose callers go


@pytest.mark.parametrize("oldest", [None, CANDIDATES], ids=["direct", "oldest"])
def test_an_abandoned_request_takes_the_rest_of_its_sequence_with_it(oldest: StrategyOldest | None) -> None:
    on = instances(oldest=oldest)
    add(on, "0", 1, start=START)
    gone = add(on, "1", 1)
    add(on, "2", 1)
    add(on, "3", 1, end=END)
    add(on, "other", 2, start=START)
    assert ids(on.policy.abandon(gone)) == ["2", "3"]
    assert on.policy.abandon(gone) == []
    assert on.batches() == [["0", "other"]]
    assert on.policy.waiting == 0


def test_an_abandoned_head_frees_its_slot_at_once() -> None:
    on = instances(max_batch_size=1)
    gone = add(on, "one", 1, start=START)
    add(on, "two", 2, start=START)
    assert on.policy.abandon(gone) == []
    assert on.batches() == [["two"]]
    with pytest.raises(InvalidArgument, match="must specify the START flag"):
        add(on, "one late", 1)


@pytest.mark.parametrize("oldest", [None, StrategyOldest(max_candidate_sequences=1)], ids=["direct", "oldest"])
def test_a_running_request_that_is_abandoned_frees_its_slot_at_once(oldest: StrategyOldest | None) -> None:
    on = instances(max_batch_size=1, oldest=oldest)
    gone = add(on, "one", 1, start=START)
    add(on, "one too", 1)
    add(on, "two", 2, start=START)
    assert on.begin() == ["one"]
    assert ids(on.policy.abandon(gone)) == ["one too"]
    on.end()
    assert on.batches() == [["two"]]


def test_a_start_behind_an_abandoned_request_goes_on() -> None:
    on = instances()
    gone = add(on, "old", 1, start=START)
    add(on, "old too", 1)
    add(on, "new", 1, start=START)
    assert ids(on.policy.abandon(gone)) == ["old too"]
    add(on, "new too", 1)
    assert on.batches() == [["new"], ["new too"]]


def test_a_sequence_that_is_abandoned_in_the_backlog_leaves_it() -> None:
    on = instances(max_batch_size=1)
    add(on, "one", 1, start=START)
    gone = add(on, "two", 2, start=START, timeout_us=1)
    add(on, "three", 3, start=START)
    add(on, "one end", 1, end=END)
    assert on.policy.abandon(gone) == []
    assert on.policy.take_expired(1.0) == []
    assert on.batches() == [["one"], ["one end"], ["three"]]


# Instances that go


def test_a_lost_instance_ends_its_sequences_and_no_others() -> None:
    on = instances("a", "b", max_batch_size=1)
    add(on, "one", 1, start=START)
    add(on, "two", 2, start=START)
    add(on, "three", 3, start=START)
    add(on, "one too", 1)
    assert on.begin("a") == ["one"]
    assert ids(on.policy.remove_instance("a")) == ["one too"]
    on.end("a")
    with pytest.raises(InvalidArgument, match="must specify the START flag"):
        add(on, "one late", 1)
    add(on, "two end", 2, end=END)
    assert on.batches("b") == [["two"], ["two end"], ["three"]]


def test_a_slot_of_a_lost_instance_is_never_given_out() -> None:
    on = instances("a", "b", max_batch_size=1)
    on.policy.remove_instance("a")
    add(on, "one", 1, start=START)
    add(on, "two", 2, start=START)
    assert on.batches("b") == [["one"]]
    assert on.policy.waiting == 1


def test_clearing_takes_out_all_that_waits() -> None:
    on = instances(max_batch_size=1)
    add(on, "one", 1, start=START, now=1.0)
    on.begin()
    add(on, "two", 2, start=START, now=3.0)
    add(on, "one too", 1, now=2.0)
    assert ids(on.policy.clear()) == ["one too", "two"]
    assert on.policy.waiting == 0
    on.end()
    assert on.batches() == []
    assert on.policy.wake_at(["a"]) == math.inf


# Iterative sequences


def test_an_iterative_request_is_a_sequence_of_rounds_that_others_join() -> None:
    on = instances(max_batch_size=2, oldest=StrategyOldest(max_candidate_sequences=2), iterative=True)
    add(on, "one", 0)
    assert on.begin() == ["one"]
    add(on, "two", 0)
    add(on, "three", 0)
    on.end(again=["one"])
    assert on.begin() == ["two", "one"]
    on.end(again=["one", "two"])
    assert on.begin() == ["two", "one"]
    on.end(again=["one"])
    assert on.begin() == ["three", "one"]
    on.end()
    assert on.batches() == []
    assert on.policy.waiting == 0


def test_the_flags_and_ids_of_iterative_requests_are_the_servers() -> None:
    policy = SequencePolicy(config(iterative=True, control_input=(id_control(),)))
    policy.add_instance("a")
    callers = [Caller("text", start=start, end=END) for start in (True, False)]
    for caller in callers:
        policy.add(caller.item, 0.0)
    found = policy.next_batch("a", 0.0)
    assert found is not None
    steps = [step for step in found[0] if step is not None]
    assert [(step.sequence.id, step.is_start, step.is_end) for step in steps] == [(1, True, False), (2, True, False)]
    assert [policy.finish(step, 0.0, is_rescheduled=True) for step in steps] == [True, True]
    again = policy.next_batch("a", 0.0)
    assert again is not None
    assert [step.is_start for step in again[0] if step is not None] == [False, False]


def test_an_abandoned_iterative_request_does_not_come_back() -> None:
    on = instances(max_batch_size=1, iterative=True)
    gone = add(on, "one", 0)
    add(on, "two", 0)
    on.begin()
    on.policy.abandon(gone)
    on.end(again=["one"])
    assert on.batches() == [["two"]]


def test_an_iterative_request_is_never_idle() -> None:
    on = instances(max_batch_size=1, iterative=True)
    add(on, "one", 0)
    on.begin()
    on.end(now=0.0, again=["one"])
    assert on.policy.take_expired(100.0) == []
    assert on.begin(now=100.0) == ["one"]


def test_an_instance_can_run_steps_of_several_sequences_at_once() -> None:
    """Each keeps its row, and what another batch runs is none of this one's."""
    on = instances(max_batch_size=3)
    add(on, "a", 1, start=START)
    assert on.begin() == ["a"]
    add(on, "a2", 1)
    add(on, "b", 2, start=START)
    add(on, "c", 3, start=START)
    assert on.begin() == [None, "b", "c"]
    add(on, "c2", 3)
    assert on.begin() is None, "one step of a sequence at a time"
    on.end()
    assert on.begin() == ["a2"]
    on.end()
    assert on.begin() == [None, None, "c2"]


def test_oldest_runs_steps_of_several_sequences_at_once() -> None:
    on = instances(max_batch_size=2, oldest=StrategyOldest(max_candidate_sequences=3))
    for id in (1, 2, 3):
        add(on, f"{id}", id, start=START)
        add(on, f"{id} end", id, end=END)
    assert on.begin() == ["1", "2"]
    assert on.begin() == ["3"]
    assert on.begin() is None
    on.end()
    assert on.begin() == ["1 end", "2 end"]
    assert on.begin() is None


@pytest.mark.parametrize("oldest", [None, StrategyOldest(max_candidate_sequences=1)], ids=["direct", "oldest"])
def test_whoever_moves_into_a_slot_waits_for_the_step_that_still_runs_there(oldest: StrategyOldest | None) -> None:
    on = instances(max_batch_size=1, oldest=oldest)
    add(on, "old", 1, start=START, end=END)
    add(on, "new", 2, start=START)
    assert on.begin() == ["old"]
    assert on.begin() is None
    on.end()
    assert on.begin() == ["new"]


def test_whoever_follows_a_caller_that_has_gone_waits_for_the_step_that_still_runs() -> None:
    """Also where it is the same client, which begins anew: a model may know sequences by their rows or by their ids."""
    on = instances(max_batch_size=2)
    add(on, "other", 1, start=START)
    gone = add(on, "gone", 2, start=START)
    assert on.begin() == ["other", "gone"]
    assert on.policy.abandon(gone) == []
    add(on, "anew", 2, start=START)
    add(on, "other end", 1, end=END)
    assert on.begin() is None
    on.end()
    assert on.begin() == ["other end", "anew"]


def test_an_id_that_starts_anew_elsewhere_waits_for_all_that_its_last_sequence_has() -> None:
    on = instances("a", "b", max_batch_size=1)
    add(on, "first", 1, start=START)
    add(on, "first end", 1, end=END)
    add(on, "second", 1, start=START, end=END)
    add(on, "third", 1, start=START)
    assert on.begin("a") == ["first"]
    assert on.begin("b") is None
    on.end("a")
    assert on.begin("a") == ["first end"]
    assert on.begin("b") is None
    on.end("a")
    assert on.begin("b") == ["second"]
    assert on.begin("a") is None
    on.end("b")
    assert on.begin("a") == ["third"]


def test_an_id_that_starts_anew_does_not_wait_for_what_was_lost() -> None:
    on = instances("a", "b", max_batch_size=1)
    first = add(on, "first", 1, start=START, end=END)
    add(on, "second", 1, start=START)
    assert on.policy.remove_instance("a") == [first]
    assert on.begin("b") == ["second"]


def test_a_lost_instance_has_no_batches_and_may_come_back() -> None:
    on = instances("a", max_batch_size=1)
    add(on, "lost", 1, start=START)
    assert on.begin() == ["lost"]
    assert on.policy.remove_instance("a") == []
    assert on.policy.remove_instance("a") == []
    add(on, "waits", 2, start=START)
    assert on.begin() is None
    assert on.policy.wake_at(["a"]) == math.inf
    on.end()
    on.policy.add_instance("a")
    on.policy.add_instance("a")
    add(on, "too many", 3, start=START)
    assert on.batches() == [["waits"]], "it has one slot"
