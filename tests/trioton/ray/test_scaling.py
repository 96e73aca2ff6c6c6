"""The policy that Ray Serve asks how many servers there should be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from trioton.ray.scaling import Scaling


@dataclass
class Context:
    aggregated_metrics: Mapping[str, Mapping[Any, float]] | None
    running_replicas: list[Any]
    target_num_replicas: int = 2
    capacity_adjusted_min_replicas: int = 1
    capacity_adjusted_max_replicas: int = 5


def wanted(signal: str, target: float, figures: Mapping[str, float] | None, replicas: int, **more: int) -> int:
    metrics = None if figures is None else {signal: figures, "another": {"x": 1e9}}
    context = Context(metrics, ["r"] * replicas, **more)
    number, state = Scaling(signal, target)(context)
    assert state == {}
    return number


@pytest.mark.parametrize(
    ("figures", "replicas", "expected"),
    [
        ({"a": 4.0}, 1, 1),
        ({"a": 4.3}, 1, 1),  # within a tenth
        ({"a": 8.1}, 1, 3),
        ({"a": 8.0, "b": 0.0}, 2, 2),
        ({"a": 1.0, "b": 1.0, "c": 1.0}, 3, 1),
        ({"a": 100.0}, 1, 5),  # bounds
        ({"a": 0.0}, 1, 1),
    ],
)
def test_as_many_as_hold_the_mean_at_its_target(figures: dict[str, float], replicas: int, expected: int) -> None:
    assert wanted("queue", 4.0, figures, replicas) == expected


def test_latency_is_that_of_the_slowest() -> None:
    assert wanted("p99_ms", 10.0, {"a": 1.0, "b": 20.0}, 2) == 4


@pytest.mark.parametrize(("figures", "replicas"), [(None, 2), ({}, 2), ({"a": 9.0}, 0)])
def test_nothing_changes_without_figures(figures: dict[str, float] | None, replicas: int) -> None:
    assert wanted("queue", 4.0, figures, replicas, target_num_replicas=3) == 3
    assert wanted("queue", 4.0, figures, replicas, target_num_replicas=9) == 5


def test_what_it_refuses() -> None:
    with pytest.raises(ValueError, match="expected one of queue, in_flight, p99_ms, got 'cpu'"):
        Scaling("cpu")
    with pytest.raises(ValueError, match=r"'target' .* must be above 0, got 0"):
        Scaling("queue", 0)
