"""The estimate of how long a batch takes."""

from __future__ import annotations

import random

import pytest

from actors.scheduling.batching.compute_cost import ENOUGH, ComputeCost


def learned(*observations: tuple[int, float]) -> ComputeCost:
    cost = ComputeCost()
    for rows, seconds in observations:
        cost.observe(rows, seconds)
    return cost


def test_it_finds_the_line_through_noisy_batches() -> None:
    rng = random.Random(5)
    sizes = [rng.randint(1, 16) for _ in range(1000)]
    cost = learned(*((size, (0.010 + 0.001 * size) * rng.uniform(0.95, 1.05)) for size in sizes))
    assert cost.is_known
    for rows in (1, 8, 16, 32):
        expected = 0.010 + 0.001 * rows
        assert cost.mean(rows) == pytest.approx(expected, rel=0.1)
        assert expected < cost.slow(rows) < 1.25 * expected


def test_it_is_not_known_from_the_start() -> None:
    assert not learned(*[(1, 1.0)] * (ENOUGH - 1)).is_known


def test_with_batches_of_one_size_half_of_the_time_is_taken_to_grow() -> None:
    cost = learned(*[(4, 0.020)] * 10)
    assert [cost.mean(rows) for rows in (2, 4, 8)] == pytest.approx([0.015, 0.020, 0.030])


def test_what_was_learned_about_growth_stays_when_sizes_become_equal() -> None:
    cost = learned(*((1 + number % 8, 0.001 * (1 + number % 8)) for number in range(100)), *[(1, 0.001)] * 1000)
    assert cost.mean(8) == pytest.approx(0.008, rel=0.05)


def test_it_never_falls_with_the_rows_and_never_starts_below_nothing() -> None:
    falling = learned(*((n, 0.020 - 0.001 * n) for n in (1, 2, 4, 8) * 10))
    assert falling.mean(16) == pytest.approx(falling.mean(1))
    steep = learned(*((n, 0.001 * n * n) for n in (1, 2, 4, 8) * 10))
    assert steep.mean(1) > 0


def test_it_follows_a_model_that_becomes_slower() -> None:
    cost = learned(*[(4, 0.010)] * 500, *[(4, 0.040)] * 300)
    assert cost.mean(4) == pytest.approx(0.040, rel=0.01)
