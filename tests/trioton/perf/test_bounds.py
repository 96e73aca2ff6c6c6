"""Bounds as they are written."""

from __future__ import annotations

import pytest

from trioton.perf.bounds import ErrorBound, LatencyBound, RateBound, bounds, duration_text, latency_bound


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p99:20ms", LatencyBound(99, 0.02)),
        ("p99.9:1.5s", LatencyBound(99.9, 1.5)),
        ("mean:500us", LatencyBound(None, 0.0005)),
        ("ttft.p95:300ms", LatencyBound(95, 0.3, "first")),
        ("itl.p99.9:50ms", LatencyBound(99.9, 0.05, "gaps")),
        ("service.mean:2ms", LatencyBound(None, 0.002, "service")),
    ],
)
def test_a_bound_is_read_and_written(text: str, expected: LatencyBound) -> None:
    assert latency_bound(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize("text", ["", "p99", "p99:", "p99:20", "p101:1s", "p99:-1ms", "x.p99:1s", "rate:5"])
def test_no_bound_on_a_latency(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        latency_bound(text)


def test_several_bounds() -> None:
    assert bounds("p99:20ms,rate:500, errors:0.01") == (LatencyBound(99, 0.02), RateBound(500), ErrorBound(0.01))


@pytest.mark.parametrize("text", ["rate:x", "rate:-1", "errors:2", "speed:3"])
def test_no_bound(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        bounds(text)


def test_durations_have_the_unit_that_fits() -> None:
    assert [duration_text(each) for each in (2.0, 0.0125, 3e-5, 2e-8)] == ["2s", "12.5ms", "30us", "20ns"]
