"""A search finds what is best within its budget, always answers, and goes on where it was killed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from tests.trioton.analyze.search.simulation import (
    Surface,
    brute_force,
    latencies,
    outcome_of,
    random_surface,
    run,
    space_of,
    true_rate,
    whole,
)
from trioton.analyze.search.aim import Aim, Objective
from trioton.analyze.search.candidates import Candidate, Outcome, Trial
from trioton.analyze.search.plan import DEFAULT, FINAL, GRID, Plan, grid_index, grid_rate
from trioton.analyze.search.verdict import judge
from trioton.analyze.space.axes import AxesSpace, Axis

MINUTES = 10


def throughput(surface: Surface) -> Aim:
    return Aim(Objective.THROUGHPUT, surface.bound)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_it_is_within_5_per_cent_of_brute_force(seed: int) -> None:
    surface = random_surface(seed)
    space = space_of(surface)
    plan = Plan(space, throughput(surface), 60 * MINUTES)
    run(surface, space, plan, seed * 1000)
    assert plan.spent <= 60 * MINUTES + 1e-6  # a sum
    assert len(plan.records) < 60  # of 360
    _, best = brute_force(surface, space)
    found = true_rate(surface, whole(space, judge(plan).proposed), count=16_000)
    assert found >= 0.95 * true_rate(surface, best, count=16_000)


@dataclass
class Promised:
    """The space, of which the formula expects far too much: it knows nothing of what the server adds."""

    space: AxesSpace

    def first(self) -> Sequence[Candidate]:
        return [replace(each, predicted=280_000.0) for each in self.space.first()]

    def neighbours(self, candidate: Candidate) -> Sequence[Candidate]:
        return self.space.neighbours(candidate)


@pytest.mark.parametrize("served", [35.0, 900.0, 3_000.0])
def test_a_rate_that_is_far_too_great_is_left_at_once(served: float) -> None:
    """For what is served, not by steps of an overload each."""
    space = Promised(space_of(random_surface(3)))
    trials = Plan(space, Aim(Objective.THROUGHPUT, 0.02), 60).trials()
    first = next(trials)
    assert first.rate <= 4_000
    second = trials.send(Outcome(achieved=served, latency=0.5, cost=2.0))
    assert second.candidate == DEFAULT
    assert served / GRID <= second.rate <= served
    third = trials.send(Outcome(achieved=second.rate, latency=0.001, cost=2.0))
    assert second.rate < third.rate < first.rate


@pytest.mark.parametrize("seconds", [0.0, 1.0, 5.0, 20.0, 60.0])
def test_any_budget_has_an_answer(seconds: float) -> None:
    surface = random_surface(3)
    space = space_of(surface)
    plan = Plan(space, throughput(surface), seconds)
    run(surface, space, plan)
    assert plan.spent <= max(seconds, 15.0)  # one trial is made in any case
    assert judge(plan).proposed in space.settings


def test_it_may_be_given_up_at_any_time() -> None:
    surface = random_surface(3)
    for count in (1, 2, 10, 40):
        space = space_of(surface)
        plan = Plan(space, throughput(surface), 60 * MINUTES)
        assert run(surface, space, plan, most_trials=count) == count
        assert judge(plan).proposed in space.settings


def test_the_same_outcomes_make_the_same_plan() -> None:
    """So what was found before a kill, told again, leads to where it was."""
    surface = random_surface(5)
    made: list[tuple[Trial, Outcome]] = []
    space = space_of(surface)
    trials = Plan(space, throughput(surface), 120).trials()
    trial = next(trials)
    for number in range(25):
        outcome = outcome_of(surface, whole(space, trial.candidate), trial, number)
        made.append((trial, outcome))
        trial = trials.send(outcome)
    again = Plan(space_of(surface), throughput(surface), 120).trials()
    repeated = next(again)
    for before, outcome in made:
        assert repeated == before
        repeated = again.send(outcome)
    assert repeated == trial


def test_all_rates_are_of_one_grid() -> None:
    surface = random_surface(5)
    space = space_of(surface)
    plan = Plan(space, throughput(surface), 300)
    run(surface, space, plan)
    rates = {each.trial.rate for record in plan.records.values() for each in record.measured}
    assert all(rate == grid_rate(round(math.log(rate) / math.log(GRID))) for rate in rates)
    assert len(rates) < 40
    assert grid_index(grid_rate(77)) == 77


def test_finalists_are_measured_in_turns_in_changing_order() -> None:
    surface = random_surface(5)
    space = space_of(surface)
    plan = Plan(space, throughput(surface), 600)
    order: list[tuple[str, str]] = []
    trials = plan.trials()
    trial = next(trials)
    try:
        while True:
            if trial.stage.startswith(FINAL):
                order.append((trial.stage, trial.candidate))
                assert trial.rate == plan.contest_rate
            trial = trials.send(outcome_of(surface, whole(space, trial.candidate), trial, len(order)))
    except StopIteration:
        pass
    finalists = set(plan.turns)
    assert len(finalists) == 3
    for turn in range(len(order) // 3):
        assert {key for _, key in order[3 * turn : 3 * turn + 3]} == finalists
    assert order[0][1] != order[3][1] != order[6][1]
    assert len(plan.turns[order[0][1]]) >= 7


def equal_pair() -> AxesSpace:
    """A setting that does nothing."""
    return AxesSpace([Axis("name", ("one", "other"))], lambda _: None)


def test_two_equal_candidates_have_no_winner() -> None:
    surface = random_surface(1)
    settings = {"instances": "2", "threads": "1", "batch": "8", "delay": "0", "isolation": "process"}
    won = 0
    for seed in range(12):
        space = equal_pair()
        plan = Plan(space, throughput(surface), 180)
        trials = plan.trials()
        trial, number = next(trials), 0
        try:
            while True:
                number += 1
                trial = trials.send(outcome_of(surface, settings, trial, 10_000 * seed + number))
        except StopIteration:
            pass
        verdict = judge(plan)
        won += verdict.is_proven
        if not verdict.is_proven:
            assert verdict.proposed == DEFAULT  # it changes least
            assert "no winner" in verdict.why
    assert won <= 2


def test_a_much_better_one_wins() -> None:
    surface = random_surface(1)
    settings = {"instances": "2", "threads": "1", "batch": "8", "delay": "0", "isolation": "process"}
    plan = Plan(equal_pair(), throughput(surface), 180)
    trials = plan.trials()
    trial, number = next(trials), 0
    try:
        while True:
            number += 1
            mine = settings if trial.candidate == DEFAULT else settings | {"instances": "1"}
            trial = trials.send(outcome_of(surface, mine, trial, number))
    except StopIteration:
        pass
    verdict = judge(plan)
    assert (verdict.proposed, verdict.is_proven) == (DEFAULT, True)


@pytest.mark.parametrize("objective", [Objective.MEMORY, Objective.LATENCY])
def test_at_a_fixed_rate(objective: Objective) -> None:
    """The least memory that keeps the bound, and the least latency."""
    surface = random_surface(0)
    space = space_of(surface)
    aim = Aim(objective, surface.bound, rate=300.0)
    plan = Plan(space, aim, 300)
    run(surface, space, plan)
    assert {each.trial.rate for record in plan.records.values() for each in record.measured} == {300.0}
    proposed = whole(space, judge(plan).proposed)
    if objective is Objective.MEMORY:
        assert proposed["instances"] == "1"
        assert true_rate(surface, proposed, count=20_000) > 280
    else:
        default = latency(surface, whole(space, DEFAULT))
        assert latency(surface, proposed) < 0.8 * default


def latency(surface: Surface, settings: Mapping[str, str]) -> float:
    return sorted(latencies(surface, settings, 300.0, 20_000, 5))[-200]


def test_a_rate_that_is_not_given_is_taken_from_the_default() -> None:
    surface = random_surface(0)
    space = space_of(surface)
    plan = Plan(space, Aim(Objective.MEMORY, surface.bound), 300)
    run(surface, space, plan)
    assert (
        0.8 * true_rate(surface, whole(space, DEFAULT)) < plan.rate < 1.05 * true_rate(surface, whole(space, DEFAULT))
    )


def test_what_cannot_be_measured_is_out_of_the_question() -> None:
    surface = random_surface(2)
    space = space_of(surface)
    plan = Plan(space, throughput(surface), 300)
    trials = plan.trials()
    trial = next(trials)
    try:
        while True:
            outcome = outcome_of(surface, whole(space, trial.candidate), trial, 1)
            if "instances" in trial.candidate:
                outcome = Outcome(cost=1.0, failure="does not load")
            trial = trials.send(outcome)
    except StopIteration:
        pass
    assert "instances" not in judge(plan).proposed
    failed = [record for record in plan.records.values() if record.failure]
    assert failed
    assert all(len(record.measured) == 1 for record in failed)


def test_a_default_that_fails_ends_the_search() -> None:
    plan = Plan(equal_pair(), Aim(Objective.THROUGHPUT, 1.0), 60)
    trials = plan.trials()
    next(trials)
    with pytest.raises(StopIteration):
        trials.send(Outcome(cost=1.0, failure="model 'm' does not load"))
    assert "does not load" in judge(plan).why
    assert isinstance(plan.known[0], Candidate)
