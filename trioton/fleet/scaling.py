"""The policy of the autoscaler: how many replicas there should be, and why. Plain and synchronous; times are given.

    signal → wanted = ceil(replicas * signal / target), within bounds → after its cool-down: a change

A signal within a tenth of its target changes nothing. Replicas are added at once after the cool-down, and ended one by
one, when fewer would have been enough for all of the cool-down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

TOLERANCE = 0.1


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of the number of replicas."""

    least: int
    most: int

    def held(self, count: int) -> int:
        return min(max(count, self.least), self.most)


@dataclass(frozen=True, slots=True)
class Change:
    """A decision: the new number, and a sentence for the log."""

    replicas: int
    reason: str


def wanted_replicas(signal: float, target: float, replicas: int) -> int:
    """As many as would bring the signal of so many replicas to its target."""
    ratio = signal / target
    return replicas if abs(ratio - 1) <= TOLERANCE else math.ceil(replicas * ratio)


class ScalingPolicy:
    """`name` and `unit` say what the signal is, `target` what it is held at. The signal of a queue is that of the mean
    replica."""

    def __init__(
        self, name: str, unit: str, target: float, bounds: Bounds, *, up_cooldown: float, down_cooldown: float
    ) -> None:
        self._name = name
        self._unit = unit
        self._target = target
        self._bounds = bounds
        self._up_cooldown = up_cooldown
        self._down_cooldown = down_cooldown
        self._changed_at = -math.inf
        # Since when fewer have been enough, and the most of them that were.
        self._low_since: float | None = None
        self._low_most = 0

    def note_change(self, now: float) -> None:
        """The number was changed by somebody else."""
        self._changed_at = now
        self._low_since = None

    def decide(self, signal: float, replicas: int, now: float) -> Change | None:
        """What is to be done now that the signal is this, with so many replicas at work."""
        wanted = self._bounds.held(wanted_replicas(signal, self._target, replicas))
        if wanted >= replicas:
            self._low_since = None
        if wanted > replicas and now - self._changed_at >= self._up_cooldown:
            return self._change(wanted, replicas, signal, now)
        if wanted < replicas:
            if self._low_since is None:
                self._low_since, self._low_most = now, wanted
            self._low_most = max(self._low_most, wanted)
            if now - max(self._low_since, self._changed_at) >= self._down_cooldown:
                return self._change(replicas - 1, replicas, signal, now)
        return None

    def _change(self, wanted: int, replicas: int, signal: float, now: float) -> Change:
        side = "above" if wanted > replicas else "below"
        for_long = ""
        if wanted < replicas and self._low_since is not None:
            for_long = f" for {now - self._low_since:.0f} s, when {self._low_most} would have been enough"
        self.note_change(now)
        bounds = f"{self._bounds.least} to {self._bounds.most}"
        reason = (
            f"scaling from {replicas} to {wanted} replicas (bounds {bounds}): {self._name} is "
            f"{signal:.4g}{self._unit}, {side} the target of {self._target:g}{self._unit}{for_long}"
        )
        return Change(wanted, reason)
