"""Arrivals: means, distributions by a test of fit, seeds, and parts of several senders."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from trioton.perf.arrivals import Arrivals, Bursty, Constant, Listed, Poisson, from_file, recorded, schedule

COUNT = 5000


def first_gaps(arrivals: Arrivals, rate: float, seed: int = 1) -> list[float]:
    return list(itertools.islice(arrivals.gaps(rate, seed), COUNT))


def greatest_distance(values: Sequence[float], distribution: Callable[[float], float]) -> float:
    """Kolmogorov's and Smirnov's statistic, by which the hypothesis falls at 1 % beyond 1.63 / √n."""
    ordered, count = sorted(values), len(values)
    return max(
        max(abs((index + 1) / count - distribution(value)), abs(index / count - distribution(value)))
        for index, value in enumerate(ordered)
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_poisson_gaps_are_exponential(seed: int) -> None:
    gaps = first_gaps(Poisson(), 200.0, seed)
    assert greatest_distance(gaps, lambda gap: 1 - math.exp(-200 * gap)) < 1.63 / math.sqrt(COUNT)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_counts_of_poisson_arrivals_have_the_variance_of_their_mean(seed: int) -> None:
    """Gaps that fit could still be tied to each other."""
    times = list(itertools.islice(schedule(Poisson(), 1000.0, seed), 50_000))
    counts = [0] * int(times[-1] / 0.02)
    for time in times:
        if time / 0.02 < len(counts):
            counts[int(time / 0.02)] += 1
    assert pstdev(counts) ** 2 / fmean(counts) == pytest.approx(1, abs=0.12)


def test_constant_gaps_do_not_pass_for_exponential_ones() -> None:
    gaps = first_gaps(Constant(), 200.0)
    assert greatest_distance(gaps, lambda gap: 1 - math.exp(-200 * gap)) > 1.63 / math.sqrt(COUNT)


def test_bursts_have_the_variation_that_is_asked_for() -> None:
    gaps = list(itertools.islice(Bursty(3.0).gaps(100.0, 1), 100_000))
    assert fmean(gaps) == pytest.approx(0.01, rel=0.05)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(3.0, rel=0.05)


def test_a_seed_repeats() -> None:
    assert first_gaps(Poisson(), 10.0, 5) == first_gaps(Poisson(), 10.0, 5) != first_gaps(Poisson(), 10.0, 6)


@pytest.mark.parametrize("arrivals", [Constant(), Poisson(), Bursty(), Listed((0.1, 0.2, 0.3))])
def test_senders_share_one_schedule(arrivals: Arrivals) -> None:
    whole = list(itertools.islice(schedule(arrivals, 50.0, 3), 30))
    parts = [list(itertools.islice(schedule(arrivals, 50.0, 3, index, 3), 10)) for index in range(3)]
    assert sorted(itertools.chain(*parts)) == whole


def test_a_list_repeats_at_its_own_rate_or_another() -> None:
    listed = Listed((0.1, 0.3))
    assert listed.rate == pytest.approx(5)
    assert list(itertools.islice(schedule(listed, 0, 0), 4)) == pytest.approx([0.1, 0.4, 0.5, 0.8])
    assert list(itertools.islice(schedule(listed, 10, 0), 4)) == pytest.approx([0.05, 0.2, 0.25, 0.4])


def test_recorded_times_are_their_gaps() -> None:
    assert recorded([10.0, 10.5, 12.0]).seconds == pytest.approx((0.5, 1.5, 1.0))


@pytest.mark.parametrize("times", [[], [1.0], [2.0, 2.0]])
def test_too_few_recorded_times(times: list[float]) -> None:
    with pytest.raises(ValueError, match="at least two"):
        recorded(times)


def test_a_file_of_gaps(tmp_path: Path) -> None:
    file = tmp_path / "gaps"
    file.write_text("# of Monday\n1000\n\n2500.5\n")
    assert from_file(file).seconds == pytest.approx((0.001, 0.0025005))


@pytest.mark.parametrize("text", ["", "0\n", "1000\nsoon\n", "-5\n", "nan\n"])
def test_a_file_without_gaps(tmp_path: Path, text: str) -> None:
    file = tmp_path / "gaps"
    file.write_text(text)
    with pytest.raises(ValueError, match="gap"):
        from_file(file)
