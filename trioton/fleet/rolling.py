"""The state machine of a rolling update: one more replica of the new kind, then one fewer of the old, and so on.

    RAISING → WATCHING → LOWERING → RAISING … DONE
        └─────────┴──────────┴──→ RETURNING → RETURNED

Plain and synchronous: it is told what there is and what the time is, and answers how many replicas of either kind there
should be. A new replica that does not get ready in time, fails its probes or dies turns the update round: the old ones
come back before the last new one goes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class UpdateState(StrEnum):
    """See the picture above."""

    RAISING = "raising"
    WATCHING = "watching"
    LOWERING = "lowering"
    RETURNING = "returning"
    DONE = "done"
    RETURNED = "returned"


@dataclass(frozen=True, slots=True)
class Observed:
    """What there is.

    Attributes:
        old, new: replicas that serve, of either kind.
        old_left, new_left: all that have not ended, those that start or drain included.
        failure: what has gone wrong with a new one since the update began; empty for nothing.
    """

    old: int
    new: int
    old_left: int
    new_left: int
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many replicas of either kind there should be."""

    old: int
    new: int


class RollingUpdate:
    """Of `total` replicas. `ready_seconds` is how long each new one may take until it serves, `watch_seconds` how long
    it must pass its probes then.

    Attributes:
        state: where it is.
        reason: why it was turned round; empty until then.
    """

    def __init__(
        self, total: int, now: float, *, ready_seconds: float, watch_seconds: float, already_new: int = 0
    ) -> None:
        self.state = UpdateState.RAISING
        self.reason = ""
        self._total = total
        self._ready_seconds = ready_seconds
        self._watch_seconds = watch_seconds
        self._replaced = 0
        self._floor = already_new
        self._since = now

    @property
    def is_over(self) -> bool:
        return self.state in (UpdateState.DONE, UpdateState.RETURNED)

    @property
    def replaced(self) -> int:
        """How many old replicas have gone for new ones."""
        return self._replaced

    def wake_at(self) -> float:
        """When it is to be asked again, if nothing changes before."""
        if self.state is UpdateState.RAISING:
            return self._since + self._ready_seconds
        return self._since + self._watch_seconds if self.state is UpdateState.WATCHING else math.inf

    def step(self, observed: Observed, now: float) -> Wanted:
        """Go on as far as what there is allows."""
        if not self.is_over and self.state is not UpdateState.RETURNING:
            self._check(observed, now)
        moved = True
        while moved:
            before = self.state, self._replaced
            self._move(observed, now)
            moved = before != (self.state, self._replaced)
        return self._wanted(observed)

    def abandon(self, reason: str, now: float) -> None:
        """Turn it round."""
        if not self.is_over and self.state is not UpdateState.RETURNING:
            self.reason = reason
            self._enter(UpdateState.RETURNING, now)

    def _check(self, observed: Observed, now: float) -> None:
        if observed.failure:
            self.abandon(observed.failure, now)
        elif self.state is UpdateState.RAISING and now >= self._since + self._ready_seconds:
            self.abandon(f"a new replica did not serve within {self._ready_seconds:g} s", now)
        elif self.state is UpdateState.WATCHING and observed.new < self._step_size():
            self.abandon("a new replica does not serve any more", now)

    def _move(self, observed: Observed, now: float) -> None:
        match self.state:
            case UpdateState.RAISING if observed.new >= self._step_size():
                self._enter(UpdateState.WATCHING, now)
            case UpdateState.WATCHING if now >= self._since + self._watch_seconds:
                self._replaced += 1
                self._enter(UpdateState.LOWERING, now)
            case UpdateState.LOWERING if observed.old_left <= self._total - self._replaced:
                self._enter(UpdateState.DONE if self._replaced == self._total else UpdateState.RAISING, now)
            case UpdateState.RETURNING if observed.old >= self._total and not observed.new_left:
                self._enter(UpdateState.RETURNED, now)
            case _:
                pass

    def _step_size(self) -> int:
        """How many new replicas there are to be in this step."""
        return max(self._replaced + 1, self._floor)

    def _enter(self, state: UpdateState, now: float) -> None:
        self.state = state
        self._since = now

    def _wanted(self, observed: Observed) -> Wanted:
        old = self._total - self._replaced
        match self.state:
            case UpdateState.RAISING | UpdateState.WATCHING:
                return Wanted(old, self._step_size())
            case UpdateState.LOWERING | UpdateState.DONE:
                return Wanted(old, max(self._replaced, self._floor))
            case _:  # those that serve go on until as many of the old do
                missing = max(self._total - observed.old, 0)
                return Wanted(self._total, min(self._replaced, missing, observed.new))
