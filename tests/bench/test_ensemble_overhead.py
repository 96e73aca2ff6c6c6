"""The measurement of ensembles runs, and its table has a line for each case."""

from __future__ import annotations

import pytest

from tests.bench import ensemble_overhead
from tests.bench.ensemble_overhead import CHAINS, WIDTHS, Result, measure, report

DIRECT = Result("the model itself", 1, 50.04)
ONE_STEP = Result("chain", 1, 90.0)


async def test_every_case_is_measured() -> None:
    results = await measure(requests=2, elements=4, rounds=2)
    assert [(each.name, each.steps) for each in results] == [
        ("the model itself", 1),
        *(("chain", length) for length in CHAINS),
        *(("side by side", width) for width in WIDTHS),
    ]
    assert all(each.request_us > 0 for each in results)
    assert len(report(results).splitlines()) == len(results) + 1


def test_a_step_costs_what_it_adds_to_a_chain_of_one() -> None:
    chain = Result("chain", 4, 300.0)
    assert chain.further_step_us(ONE_STEP) == pytest.approx(70)
    assert chain.overhead_us(ONE_STEP, DIRECT) == pytest.approx(70 - 50.04)
    assert ONE_STEP.further_step_us(ONE_STEP) is None
    assert ONE_STEP.overhead_us(ONE_STEP, DIRECT) == pytest.approx(90 - 50.04)


def test_the_table() -> None:
    table = report([DIRECT, ONE_STEP, Result("chain", 4, 300.0), Result("side by side", 2, 165.0)])
    assert [line.split() for line in table.splitlines()[1:]] == [
        ["the", "model", "itself", "1", "50.0"],
        ["chain", "1", "90.0", "40.0"],
        ["chain", "4", "300.0", "70.0", "20.0"],
        ["side", "by", "side", "2", "165.0", "75.0", "25.0"],
    ]
    assert "µs per further step" in table.splitlines()[0]


def test_an_ensemble_of_each_form_is_valid() -> None:
    assert len(ensemble_overhead.chain(3).output) == 1
    assert len(ensemble_overhead.fan(3).output) == 3
