"""When three windows are alike."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trioton.perf_analyzer.figures import figures
from trioton.perf_analyzer.options import Options, WindowKind
from trioton.perf_analyzer.windows import Rules, Verdict, inference_rate, result_of


def rules(**more: Any) -> Rules:
    return Rules.of(Options(model="m", **more))


ALIKE = [figures([5.0] * count) for count in (100, 105, 102)]
OTHER_RATE = figures([5.0] * 130)
OTHER_LATENCY = figures([6.0] * 100)


@pytest.mark.parametrize(
    ("windows", "verdict"),
    [
        (ALIKE[:2], Verdict.GOES_ON),
        (ALIKE, Verdict.STABLE),
        ([OTHER_RATE, *ALIKE], Verdict.STABLE),
        ([*ALIKE[:2], OTHER_RATE], Verdict.GOES_ON),
        ([*ALIKE[:2], OTHER_LATENCY], Verdict.GOES_ON),
        ([OTHER_LATENCY, OTHER_RATE, ALIKE[0], OTHER_LATENCY], Verdict.UNSTABLE),
        ([figures([])] * 3, Verdict.GOES_ON),
    ],
)
def test_verdicts(windows: list[Any], verdict: Verdict) -> None:
    assert rules(trials=4).judge(windows) is verdict


def test_a_percentile_in_place_of_the_mean() -> None:
    one, other = figures([1.0] * 99 + [100.0]), figures([1.0] * 99 + [300.0])
    assert rules(percent=50).are_alike([one, other, one])
    assert not rules().are_alike([one, other, one])


def test_async_does_not_judge_latency() -> None:
    windows = [*ALIKE[:2], OTHER_LATENCY]
    assert rules(is_async=True).judge(windows) is Verdict.STABLE


def test_beyond_the_limit_three_windows_are_enough() -> None:
    windows = [figures([latency] * 100) for latency in (30.0, 50.0, 90.0)]
    assert rules(latency_limit=0.02).judge(windows) is Verdict.STABLE
    assert rules(latency_limit=0.04).judge(windows) is Verdict.GOES_ON


def test_what_ends_a_window() -> None:
    by_count = rules(window=WindowKind.COUNT, window_requests=50)
    assert not by_count.ends_window([figures([1.0] * 60, seconds=0.5)])
    assert not by_count.ends_window([figures([1.0] * 40, seconds=2)])
    assert by_count.ends_window([figures([1.0] * 40, seconds=0.6), figures([1.0] * 20, seconds=0.6)])
    assert rules(window_seconds=5).ends_window([figures([], seconds=5.001)])


def test_the_result_is_the_last_three_as_one() -> None:
    found = result_of([figures([1.0] * 10, batch=4), *[figures([1.0] * 20, batch=4)] * 3])
    assert found.succeeded == 60
    assert inference_rate(found) == 80
