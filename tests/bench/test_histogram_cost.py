"""The measurement of the histograms' cost runs, and its table has a line for each number of requests in flight."""

from __future__ import annotations

import pytest

from tests.bench.histogram_cost import BEGIN, CONCURRENCIES, END, PAGE, Cost, measure, report


async def test_every_case_is_measured() -> None:
    costs = await measure(rounds=2, requests=64)
    assert [cost.concurrency for cost in costs] == list(CONCURRENCIES)
    assert all(cost.throughput_with > 0 and cost.throughput_without > 0 for cost in costs)


def test_the_table() -> None:
    cost = Cost(16, 40_000.0, 50_000.0, 5.0)
    assert cost.share == pytest.approx(0.25)
    cells = [cell.strip() for cell in report([cost]).splitlines()[-1].split("|")]
    assert cells == ["", "16", "40,000", "50,000", "5.00", "25.0%", ""]


def test_the_page_has_a_place_for_it() -> None:
    page = PAGE.read_text()
    assert page.count(BEGIN) == page.count(END) == 1
