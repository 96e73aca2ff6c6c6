"""The tool measures what it says: batches that are answered."""

from __future__ import annotations

import pytest

from tests.bench import worker_exchange


@pytest.mark.parametrize("isolation", ["process", "in_process", "in_loop"])
async def test_the_cost_of_both_sides_is_told(isolation: str) -> None:
    cost = await worker_exchange.measure(isolation, batch=3, bursts=2)
    assert cost.server > 0
    assert (cost.worker > 0) == (isolation == "process")
