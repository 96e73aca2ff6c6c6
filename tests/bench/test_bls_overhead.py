"""The measurement of models' calls runs, and its table has a line for each case."""

from __future__ import annotations

from pathlib import Path

from tests.bench.bls_overhead import MODELS, Result, build, measure, report


async def test_every_case_is_measured(tmp_path: Path) -> None:
    build(tmp_path)
    results = await measure(tmp_path, calls=2, elements=4, rounds=1)
    assert [each.name for each in results] == list(MODELS)
    assert all(each.call_us > 0 for each in results)
    assert all(each.cpu_us > 0 for each in results)


def test_the_table() -> None:
    table = report([Result("step", 300.0, 240.0), Result("ensemble", 400.0, 320.0), Result("exec", 560.04, 480.0)])
    assert [line.split() for line in table.splitlines()[1:]] == [
        ["step", "300.0", "0.75", "240.0", "0.75"],
        ["ensemble", "400.0", "1.00", "320.0", "1.00"],
        ["exec", "560.0", "1.40", "480.0", "1.50"],
    ]
    assert "CPU µs" in table.splitlines()[0]
