"""The measurement of ensembles runs, and its table has a line for each case."""

from __future__ import annotations

from tests.bench import ensemble_overhead
from tests.bench.ensemble_overhead import CHAINS, WIDTHS, Result, measure, report


async def test_every_case_is_measured() -> None:
    results = await measure(requests=2, elements=4)
    assert [(each.name, each.steps) for each in results] == [
        ("the model itself", 1),
        *(("chain", length) for length in CHAINS),
        *(("side by side", width) for width in WIDTHS),
    ]
    assert all(each.request_us > 0 for each in results)
    assert len(report(results).splitlines()) == len(results) + 1


def test_the_table() -> None:
    table = report([Result("the model itself", 1, 50.04, 0.0), Result("chain", 4, 260.0, 15.04)])
    assert [line.split() for line in table.splitlines()[1:]] == [
        ["the", "model", "itself", "1", "50.0"],
        ["chain", "4", "260.0", "15.0"],
    ]
    assert "µs per step" in table.splitlines()[0]


def test_an_ensemble_of_each_form_is_valid() -> None:
    assert len(ensemble_overhead.chain(3).output) == 1
    assert len(ensemble_overhead.fan(3).output) == 3
