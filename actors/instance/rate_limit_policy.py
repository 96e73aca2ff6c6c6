"""The rate limiter's policy: which model instances may run, given the resources that they share.

Plain and synchronous. Source: Triton's rate limiter (`instance_group.rate_limiter`, `--rate-limit-resource`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from protocol.errors import InvalidArgument
from repository.model_config import ModelRateLimiter

# How many others may pass a waiting instance that does not fit before what it needs is kept for it.
MOST_PASSES = 16

# A resource's name and the device that has it; None for a resource that all devices share (`global: true`).
Pool: TypeAlias = tuple[str, int | None]


@dataclass(frozen=True, slots=True)
class RateLimitResource:
    """One `--rate-limit-resource`. Without a device the count is that of each device. For a global resource the device
    is of no concern."""

    name: str
    count: int
    device_id: int | None = None


@dataclass(eq=False, slots=True)
class Claim:
    """What one instance needs to run a batch. `position` is its scaled priority; the smallest goes first."""

    instance: str
    priority: int
    needs: Mapping[Pool, int]
    position: int = 0
    passes: int = field(default=0, init=False)
    turn: int = field(default=0, init=False)


def make_claim(instance: str, device_id: int, limits: ModelRateLimiter) -> Claim | None:
    """The claim of an instance; None if it needs no resource, and so never has to wait.

    Raises:
        InvalidArgument: a resource is named both as global and as the device's.
    """
    needs: dict[Pool, int] = {}
    for resource in limits.resources:
        pool = (resource.name, None if resource.global_ else device_id)
        if (resource.name, device_id if resource.global_ else None) in needs:
            raise _of_both_kinds(resource.name)
        if resource.count:
            needs[pool] = needs.get(pool, 0) + resource.count
    return Claim(instance, max(1, limits.priority), needs) if needs else None


class RateLimitPolicy:
    """The rules.

    1. Where `--rate-limit-resource` is given, a pool has as many units as it says, and none if it says nothing of that
       resource (on that device); else as many as the registered instance needs that needs most of it.
    2. An instance runs when every pool has as many free units as it needs; it takes them all at once and gives them all
       back after its batch.
    3. Among waiting instances the one with the smallest position goes first, among equals the one that has waited
       longest. Each run adds the instance's priority to its position; so of two that always wait, one of priority 2
       runs half as often as one of priority 1.
    4. An instance that begins to wait is put level with those that ran last on what it needs, if it is behind them:
       neither a new instance nor one that was idle for long may hold up the others until it has caught up.
    5. An instance that does not fit is passed by those that do. When `MOST_PASSES` that share a pool with it have
       passed, the pools that it needs are kept for it.
    """

    def __init__(self, resources: Iterable[RateLimitResource] = ()) -> None:
        self._counts: dict[Pool, int] = {}
        for resource in resources:
            key = resource.name, resource.device_id
            self._counts[key] = min(resource.count, self._counts.get(key, resource.count))
        self._claims: dict[Claim, None] = {}
        self._waiting: dict[Claim, None] = {}
        self._used: dict[Pool, int] = {}
        self._levels: dict[Pool, int] = {}
        self._turns = itertools.count(1)

    def register(self, claim: Claim) -> None:
        """Count with an instance from now on.

        Raises:
            InvalidArgument: it could never run, or another one has the same resource of the other kind.
        """
        kinds = {(name, device is None) for other in self._claims for name, device in other.needs}
        for (name, device), need in claim.needs.items():
            if (name, device is not None) in kinds:
                raise _of_both_kinds(name)
            count = self._given((name, device))
            if count is not None and count < need:
                raise InvalidArgument(
                    f'Resource count for "{name}" is limited to {count} which will prevent scheduling of one or more '
                    f"model instances, the minimum required count is {need}"
                )
        self._claims[claim] = None

    def unregister(self, claim: Claim) -> None:
        """Forget an instance that neither waits nor runs."""
        self._claims.pop(claim, None)

    def ask(self, claim: Claim) -> None:
        """The instance has a batch and waits from now on."""
        level = max(self._levels.get(pool, 0) for pool in claim.needs)
        claim.position = max(claim.position, level)
        claim.passes = 0
        claim.turn = next(self._turns)
        self._waiting[claim] = None

    def renewed(self, holding: Iterable[Claim], waiting: Iterable[Claim]) -> RateLimitPolicy:
        """One with the same resources and instances, made from who holds some and who waits."""
        made = RateLimitPolicy(())
        made._counts, made._claims, made._levels, made._turns = self._counts, self._claims, self._levels, self._turns
        for claim in holding:
            for pool, need in claim.needs.items():
                made._used[pool] = made._used.get(pool, 0) + need
        made._waiting.update(dict.fromkeys(waiting))
        return made

    def withdraw(self, claim: Claim) -> None:
        """The instance does not wait any more, without having run."""
        self._waiting.pop(claim, None)

    def release(self, claim: Claim) -> None:
        """The instance has run its batch."""
        for pool, need in claim.needs.items():
            self._used[pool] -= need

    def grant(self) -> list[Claim]:
        """Those that run from now on; to be asked after every change."""
        granted: list[Claim] = []
        passed: list[Claim] = []
        kept: set[Pool] = set()
        for claim in sorted(self._waiting, key=lambda waiting: (waiting.position, waiting.turn)):
            if kept.isdisjoint(claim.needs) and self._fits(claim):
                self._start(claim)
                granted.append(claim)
                for other in passed:
                    if not other.needs.keys().isdisjoint(claim.needs):
                        other.passes += 1
                        if other.passes >= MOST_PASSES:
                            kept.update(other.needs)
                continue
            passed.append(claim)
            if claim.passes >= MOST_PASSES:
                kept.update(claim.needs)
        return granted

    def free(self, pool: Pool) -> int:
        """Units that nobody holds; negative after the instance that needed most has been unloaded."""
        return self.count(pool) - self._used.get(pool, 0)

    def _start(self, claim: Claim) -> None:
        del self._waiting[claim]
        for pool, need in claim.needs.items():
            self._used[pool] = self._used.get(pool, 0) + need
            self._levels[pool] = max(self._levels.get(pool, 0), claim.position)
        claim.position += claim.priority

    def _fits(self, claim: Claim) -> bool:
        return all(self.free(pool) >= need for pool, need in claim.needs.items())

    def count(self, pool: Pool) -> int:
        """All units that there are."""
        given = self._given(pool)
        if given is not None:
            return given
        return max((claim.needs.get(pool, 0) for claim in self._claims), default=0)

    def _given(self, pool: Pool) -> int | None:
        if not self._counts:
            return None
        name, device = pool
        return max(
            (
                count
                for (given, given_device), count in self._counts.items()
                if given == name and (device is None or given_device in (None, device))
            ),
            default=0,
        )


def _of_both_kinds(name: str) -> InvalidArgument:
    return InvalidArgument(
        f'Resource "{name}" is present as both global and device-specific resource in the model configuration.'
    )
