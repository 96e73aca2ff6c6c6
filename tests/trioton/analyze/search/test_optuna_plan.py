"""Optuna in place of rounds."""

from __future__ import annotations

import pytest

from tests.trioton.analyze.search.simulation import random_surface, run, space_of, true_rate, whole
from trioton.analyze.search.aim import Aim, Objective
from trioton.analyze.search.verdict import judge

pytest.importorskip("optuna", reason="optuna is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")]


@pytest.mark.parametrize("seed", [1, 5])
def test_it_finds_what_is_far_better_than_the_default(seed: int) -> None:
    from trioton.analyze.search.optuna_plan import OptunaPlan

    surface = random_surface(seed)
    orders = []
    for _ in range(2):
        space = space_of(surface)
        plan = OptunaPlan(space, Aim(Objective.THROUGHPUT, surface.bound), 600.0, options=space)
        run(surface, space, plan, seed * 1000)
        orders.append(list(plan.records))
    assert orders[0] == orders[1]  # so it can go on from a journal
    assert plan.spent <= 600
    found = true_rate(surface, whole(space, judge(plan).proposed))
    assert found > 3 * true_rate(surface, whole(space, ""))
