"""Rate limiter: the resources that all model instances of a server share (`--rate-limit execution_count`).

Flow: scheduler → model instance → [rate limiter] → backend. Owned by the core. It has no task of its own: asking and
giving back are calls, each done between two checkpoints; only a model instance waits here, with its batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType

import trio

from actors.rate_limit_policy import Claim, RateLimitPolicy, RateLimitResource, make_claim
from repository.model_config import ModelRateLimiter


class RateLimiter:
    """One server's resources."""

    def __init__(self, resources: Iterable[RateLimitResource] = ()) -> None:
        self._policy = RateLimitPolicy(resources)
        self._waiting: dict[Claim, trio.Event] = {}

    def register(self, claim: Claim) -> None:
        """Raises InvalidArgument, as the policy does."""
        self._policy.register(claim)

    def unregister(self, claim: Claim) -> None:
        self._policy.unregister(claim)
        self._grant()

    async def acquire(self, claim: Claim) -> None:
        """Wait for the turn of an instance. Cancelled, it holds nothing."""
        granted = self._waiting[claim] = trio.Event()
        self._policy.ask(claim)
        self._grant()
        try:
            await granted.wait()
        except BaseException:
            if self._waiting.pop(claim, None) is None:  # granted in the same moment
                self._policy.release(claim)
            else:
                self._policy.withdraw(claim)
            self._grant()
            raise

    def release(self, claim: Claim) -> None:
        self._policy.release(claim)
        self._grant()

    def _grant(self) -> None:
        for claim in self._policy.grant():
            self._waiting.pop(claim).set()


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the instances of one model need, by their names."""

    limiter: RateLimiter
    needs: Mapping[str, ModelRateLimiter]

    def of_instance(self, name: str, device_id: int) -> InstanceLimit | None:
        """The registered limit of an instance, to be closed at its end; None if it needs nothing.

        Raises:
            InvalidArgument: it could never run.
        """
        needs = self.needs.get(name)
        claim = None if needs is None else make_claim(name, device_id, needs)
        if claim is None:
            return None
        self.limiter.register(claim)
        return InstanceLimit(self.limiter, claim)


@dataclass(frozen=True, slots=True)
class InstanceLimit:
    """`async with` it, an instance holds its resources; entering waits for them."""

    limiter: RateLimiter
    claim: Claim

    async def __aenter__(self) -> None:
        await self.limiter.acquire(self.claim)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.limiter.release(self.claim)

    def close(self) -> None:
        """The instance is gone."""
        self.limiter.unregister(self.claim)
