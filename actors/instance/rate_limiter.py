"""Rate limiter: a priority semaphore over the resources of a server's model instances (`--rate-limit execution_count`).

Flow: scheduler → model instance → [rate limiter] → backend. Owned by the core. It has no task of its own: model
instances wait in it, each with its batch. Cancelled while it waits, an instance holds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType

import trio

from actors.instance.rate_limit_policy import Claim, Pool, RateLimitPolicy, RateLimitResource, make_claim
from protocol.errors import Internal
from repository.model_config import ModelRateLimiter


class RateLimiter:
    """One server's resources."""

    def __init__(self, resources: Iterable[RateLimitResource] = ()) -> None:
        self._policy = RateLimitPolicy(resources)
        self._waiting: dict[Claim, trio.Event] = {}
        self._holding: set[Claim] = set()
        self._refused: set[Claim] = set()  # of them
        self._owned: dict[int, dict[str, Claim]] = {}  # by the owner's identity

    def register(self, claim: Claim, owner: object = None) -> None:
        """`owner` is the source of the instance's spec. Raises InvalidArgument, as the policy does."""
        self._policy.register(claim)
        self._owned.setdefault(id(owner), {})[claim.instance] = claim

    def unregister(self, claim: Claim, owner: object = None) -> None:
        self._policy.unregister(claim)
        owned = self._owned.get(id(owner), {})
        owned.pop(claim.instance, None)
        if not owned:
            self._owned.pop(id(owner), None)
        self._grant()

    # actors.model.call_waits.SharedResources

    def claims(self, source: object) -> Mapping[str, Claim]:
        """Of those instances with this source that need any resources, by their names."""
        return self._owned.get(id(source), {})

    def count(self, pool: Pool) -> int:
        return self._policy.count(pool)

    def free(self, pool: Pool) -> int:
        """Units that nobody holds."""
        return self._policy.free(pool)

    async def acquire(self, claim: Claim) -> None:
        """Wait for the turn of an instance. Cancelled, it holds nothing."""
        await self._wait_for(claim, self._ask(claim))

    async def acquire_again(self, claim: Claim) -> None:
        """Give back what an instance holds, and wait for its next turn. Cancelled, it holds nothing.

        It asks before it gives back: else there would always be somebody who waits for longer, and priorities would
        count for nothing.
        """
        try:
            granted = self._ask(claim)
        except BaseException:
            self.release(claim)
            raise
        await self._wait_for(claim, granted, gives_back=True)

    def _ask(self, claim: Claim) -> trio.Event:
        granted = self._waiting[claim] = trio.Event()
        try:
            self._policy.ask(claim)
        except BaseException:
            del self._waiting[claim]
            self._policy.withdraw(claim)
            raise
        return granted

    async def _wait_for(self, claim: Claim, granted: trio.Event, *, gives_back: bool = False) -> None:
        try:
            if gives_back:
                self._give_back(claim)
            self._grant()
            await granted.wait()
            if claim in self._refused:
                raise Internal("the rate limiter failed unexpectedly; the server's log has the details")
        except BaseException:
            self._refused.discard(claim)
            if self._waiting.pop(claim, None) is None:  # granted in the same moment
                self.release(claim)
            else:
                self._policy.withdraw(claim)
                self._grant()
            raise

    def release(self, claim: Claim) -> None:
        try:
            self._give_back(claim)
        finally:
            self._grant()

    def _give_back(self, claim: Claim) -> None:
        self._holding.discard(claim)
        try:
            self._policy.release(claim)
        except Exception:
            self._renew()
            raise

    def _grant(self) -> None:
        try:
            granted = self._policy.grant()
        except Exception:
            self._renew()
            try:
                granted = self._policy.grant()
            except Exception:
                self._refuse_all()
                raise
        self._holding.update(granted)
        for claim in granted:
            self._waiting.pop(claim).set()

    def _renew(self) -> None:
        """The policy has raised, so nobody knows what it has noted: what is held and who waits is known here too."""
        self._policy = self._policy.renewed(self._holding, self._waiting)

    def _refuse_all(self) -> None:
        """Nobody can be told when his turn is."""
        for claim, waiting in self._waiting.items():
            self._refused.add(claim)
            waiting.set()


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the instances of one model need, by their names."""

    limiter: RateLimiter
    needs: Mapping[str, ModelRateLimiter]

    def of_instance(self, name: str, device_id: int, source: object = None) -> InstanceLimit | None:
        """The registered limit of an instance, to be closed at its end; None if it needs nothing. `source` is its
        spec's.

        Raises:
            InvalidArgument: it could never run.
        """
        needs = self.needs.get(name)
        claim = None if needs is None else make_claim(name, device_id, needs)
        if claim is None:
            return None
        self.limiter.register(claim, source)
        return InstanceLimit(self.limiter, claim, source)


@dataclass(eq=False, slots=True)
class InstanceLimit:
    """`async with` it, an instance holds its resources; entering waits for them, and so does each `renew`."""

    limiter: RateLimiter
    claim: Claim
    source: object = None
    _holds: bool = field(default=False, init=False)

    async def __aenter__(self) -> InstanceLimit:
        await self.limiter.acquire(self.claim)
        self._holds = True
        return self

    async def renew(self) -> None:
        """The instance has another batch to run after the one that has ended: wait for its next turn."""
        self._holds = False
        await self.limiter.acquire_again(self.claim)
        self._holds = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._holds:  # else it was cancelled while it waited for its next turn
            self._holds = False
            self.limiter.release(self.claim)

    def close(self) -> None:
        """The instance is gone."""
        self.limiter.unregister(self.claim, self.source)
