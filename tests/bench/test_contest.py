"""Whose turn it is, what is kept of each turn, and the figures made from the rounds."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.bench.contest import FAILURES_UNTIL_LEFT_OUT, Failure, Outcome, Ratio, Results, Turn, hold, turns
from tests.bench.measurement import LoadFailed, Measurement
from tests.bench.rows import Row

SMALL = Row("add_sub", "http", 1)
LARGE = Row("large", "grpc", 8)


def measured(throughput: float, p50: float = 1.0, p99: float = 2.0) -> Measurement:
    return Measurement(throughput, p50, p99)


def results_of(row: Row, **by_server: list[Outcome]) -> Results:
    results = Results()
    for server, outcomes in by_server.items():
        for number, outcome in enumerate(outcomes):
            results.add(Turn(number, row, server), outcome)
    return results


def test_each_round_has_every_row_with_the_servers_side_by_side_in_changing_order() -> None:
    taken = [(turn.round, turn.row, turn.server) for turn in turns([SMALL, LARGE], ["a", "b"], rounds=2)]
    assert taken == [
        (0, SMALL, "a"),
        (0, SMALL, "b"),
        (0, LARGE, "a"),
        (0, LARGE, "b"),
        (1, SMALL, "b"),
        (1, SMALL, "a"),
        (1, LARGE, "b"),
        (1, LARGE, "a"),
    ]


def test_rounds_are_taken_in_order() -> None:
    numbers = [turn.round for turn in turns([SMALL], ["a"], rounds=5)]
    assert all(later - earlier == 1 for earlier, later in pairwise(numbers))
    assert len(numbers) == 5


def test_every_outcome_is_kept_and_told() -> None:
    def attempt(turn: Turn) -> Measurement:
        if turn.row == LARGE:
            raise LoadFailed("too large")
        return measured(10)

    results, told = Results(), list[tuple[Turn, Outcome]]()
    hold(turns([SMALL, LARGE], ["a"], rounds=1), attempt, results, lambda turn, outcome: told.append((turn, outcome)))
    assert results.typical(SMALL, "a") == measured(10)
    assert results.failures(LARGE, "a") == ["too large"]
    assert told == [(Turn(0, SMALL, "a"), measured(10)), (Turn(0, LARGE, "a"), Failure("too large"))]


def test_a_row_that_keeps_failing_is_left_out_for_that_server_only() -> None:
    attempts: list[str] = []

    def attempt(turn: Turn) -> Measurement:
        attempts.append(turn.server)
        if turn.server == "bad":
            raise LoadFailed("no")
        return measured(1)

    hold(turns([SMALL], ["bad", "good"], rounds=5), attempt, Results(), lambda *_: None)
    assert attempts.count("bad") == FAILURES_UNTIL_LEFT_OUT
    assert attempts.count("good") == 5


def test_a_run_that_is_broken_off_keeps_what_was_measured() -> None:
    results = Results()

    def attempt(turn: Turn) -> Measurement:
        if turn.round == 1:
            raise KeyboardInterrupt
        return measured(7)

    with pytest.raises(KeyboardInterrupt):
        hold(turns([SMALL], ["a"], rounds=3), attempt, results, lambda *_: None)
    assert results.typical(SMALL, "a") == measured(7)


def test_the_typical_measurement_is_the_median_of_each_figure_without_the_failures() -> None:
    outcomes: list[Outcome] = [measured(100, 5, 9), Failure("x"), measured(300, 1, 8), measured(200, 3, 10)]
    assert results_of(SMALL, a=outcomes).typical(SMALL, "a") == measured(200, 3, 9)


def test_the_processor_s_time_is_of_the_rounds_that_know_it() -> None:
    timed: list[Outcome] = [Measurement(1, 1, 1, processor) for processor in (None, 30, 10, 20)]
    typical = results_of(SMALL, a=timed).typical(SMALL, "a")
    assert typical is not None
    assert typical.processor == 20


def test_without_a_measurement_there_is_no_typical_one_and_no_ratio() -> None:
    results = results_of(SMALL, a=[Failure("x")], b=[measured(1)])
    assert results.typical(SMALL, "a") is None
    assert results.throughput_ratio(SMALL, "a", "b") is None
    assert results.throughput_ratio(LARGE, "a", "b") is None


def test_a_ratio_is_the_median_over_the_rounds_that_both_finished() -> None:
    ours: list[Outcome] = [measured(100, 5), Failure("x"), measured(300, 30), measured(400, 10)]
    theirs: list[Outcome] = [measured(100, 10), measured(1, 1), measured(200, 10), measured(100, 10), measured(1, 1)]
    results = results_of(SMALL, a=ours, b=theirs)
    assert results.throughput_ratio(SMALL, "a", "b") == Ratio(1.5, 1.0, 4.0, 3)
    assert results.p50_ratio(SMALL, "a", "b") == Ratio(1.0, 0.5, 3.0, 3)


def test_two_that_finished_no_round_together_have_no_ratio() -> None:
    results = results_of(SMALL, a=[measured(100), Failure("x")], b=[Failure("x"), measured(1)])
    assert results.throughput_ratio(SMALL, "a", "b") is None
