"""Charges of requests that come from edge processes, where the quotas are; and what is left of these, as it crosses."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from protocol.edge_link.frames import BrokenFrame
from protocol.edge_link.texts import decode_text, encode_text
from protocol.errors import QuotaExceeded
from protocol.quotas.accounts import Account, Charge
from protocol.quotas.meters import Bucket, Meter, Places, Rate
from protocol.quotas.quota import Limit, Unit


class LinkCharge(Charge):
    """What one request takes from the quota of its key. The edge process that has it counts the request and its bytes,
    so it is neither begun nor ended here; but compute time and tokens are counted."""

    __slots__ = ()

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._is_running = False

    @property
    def is_limited(self) -> bool:
        return self.account.quota is not None

    def admit(self, model: str, size: float) -> None:
        """Raises QuotaExceeded; then nothing is charged."""
        quota = self.account.quota
        if quota is not None:
            self.take((*quota.early, *quota.late_limits(model)) if model else quota.early, size)

    def end(self) -> None:
        """It is answered, or given up. Idempotent."""
        taken, self._taken = self._taken, []
        if taken:  # else it was refused after all, which has given it back
            for limit, meter in self.held:
                if limit.unit is Unit.CONCURRENT_REQUESTS:
                    meter.give(1)


def note_used(account: Account, model: str, requests: int, size: float) -> None:
    """Charge what an edge process has found to be used: bytes, and requests that it has refused by itself."""
    for _ in range(requests):
        charge = LinkCharge(account)
        try:
            charge.admit(model, size)
        except QuotaExceeded:  # more than all is not used up by what was not run
            return
        charge.end()
        size = 0.0
    quota = account.quota
    if quota is None or not size:
        return
    limits: Iterable[Limit] = (*quota.early, *quota.late_limits(model)) if model else quota.early
    for meter in [account.meter(limit) for limit in limits if limit.unit is Unit.BYTES]:
        if size > 0:
            meter.take(size, account.now())
        else:
            meter.give(-size)


class LimitText(msgspec.Struct, array_like=True, frozen=True):
    """A limit that holds for a request, and how much of it is used: of a rate the seconds in which all of it is free
    again, else a number."""

    unit: Unit
    model: str
    amount: int | tuple[float, float, float]
    used: float


def encode_left(charge: Charge) -> bytes:
    now = charge.account.now()
    return encode_text([_limit_text(limit, meter, now) for limit, meter in charge.held])


def _limit_text(limit: Limit, meter: Meter, now: float) -> LimitText:
    amount = limit.amount
    if isinstance(amount, int):
        return LimitText(limit.unit, limit.model, amount, amount - meter.remaining(now))
    return LimitText(limit.unit, limit.model, (amount.limit, amount.seconds, amount.burst), meter.reset(now))


def decode_left(text: memoryview, now: float) -> list[tuple[Limit, Meter]]:
    """The limits, with meters of their own that show the same from now on. Raises BrokenFrame."""
    found: list[tuple[Limit, Meter]] = []
    for unit, model, amount, used in map(msgspec.structs.astuple, decode_text(text, list[LimitText])):
        if isinstance(amount, int):
            places = Places(amount)
            places.take(used, now)
            found.append((Limit(unit, amount, model), places))
            continue
        rate = Rate(*amount)
        if rate.limit <= 0:
            raise BrokenFrame(f"its limit of {unit} is {rate.limit}")
        bucket = Bucket(rate)
        bucket.take(used / rate.interval, now)
        found.append((Limit(unit, rate, model), bucket))
    return found
