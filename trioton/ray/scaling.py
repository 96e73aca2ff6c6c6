"""Autoscaling by what a server says of itself, since Serve sees none of the requests.

    autoscaling_config:
      min_replicas: 1
      max_replicas: 4
      policy:
        policy_function: trioton.ray:Scaling
        policy_kwargs: {signal: queue, target: 4}

Bounds and delays are those of Serve's `autoscaling_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from trioton.fleet.scaling import wanted_replicas

QUEUE, IN_FLIGHT, P99_MS = "queue", "in_flight", "p99_ms"
SIGNALS = (QUEUE, IN_FLIGHT, P99_MS)


class Context(Protocol):
    """The part of `ray.serve.config.AutoscalingContext` that counts here."""

    aggregated_metrics: Mapping[str, Mapping[Any, float]] | None
    running_replicas: list[Any]
    target_num_replicas: int
    capacity_adjusted_min_replicas: int
    capacity_adjusted_max_replicas: int


class Scaling:
    """A policy of Ray Serve: as many replicas as hold the signal at its target.

    Args:
        signal: "queue", the requests that wait for each replica, "in_flight", those that each has, or "p99_ms", the
            99th percentile of their duration in milliseconds, of the slowest replica.
        target: what the signal is to be.

    Raises:
        ValueError: another signal, or a target that is not above 0.
    """

    def __init__(self, signal: str = QUEUE, target: float = 4.0) -> None:
        if signal not in SIGNALS:
            raise ValueError(f"'signal' of trioton.ray.scaling: expected one of {', '.join(SIGNALS)}, got '{signal}'")
        if not target > 0:
            raise ValueError(f"'target' of trioton.ray.scaling must be above 0, got {target}")
        self._signal = signal
        self._target = target

    def __call__(self, ctx: Context) -> tuple[int, dict[str, Any]]:
        """The wanted number, and no state. Without figures, as right after the start, nothing changes."""
        figures = [*((ctx.aggregated_metrics or {}).get(self._signal) or {}).values()]
        least, most = ctx.capacity_adjusted_min_replicas, ctx.capacity_adjusted_max_replicas
        count = len(ctx.running_replicas)
        if not figures or not count:
            return min(max(ctx.target_num_replicas, least), most), {}
        mean = max(figures) if self._signal == P99_MS else sum(figures) / len(figures)
        return min(max(wanted_replicas(mean, self._target, count), least), most), {}
