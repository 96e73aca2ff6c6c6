"""The report of what a fleet costs."""

from __future__ import annotations

from tests.bench.fleet import KINDS, WAYS, cell, report


def test_a_cell_has_the_tenth_percentile_and_the_median() -> None:
    assert cell([i / 1000 for i in range(1, 100)]) == "10.00 / 50.00"


def test_every_kind_has_a_row_and_every_way_a_column() -> None:
    times = {(kind, way): [0.001, 0.002, 0.003] for kind in KINDS for way in WAYS}
    text = report(times)
    assert all(kind in text for kind in KINDS)
    assert all(way in text for way in WAYS)
