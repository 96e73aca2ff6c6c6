"""Charges of requests that come from edge processes, where the quotas are; and what is left of these, as it crosses."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from protocol.edge_link.frames import BrokenFrame
from protocol.edge_link.received import Received
from protocol.edge_link.texts import ChargedText, UsedText, decode_text, encode_text
from protocol.errors import Cancelled, QuotaExceeded
from protocol.quotas.accounts import Account, Charge
from protocol.quotas.meters import Bucket, Meter, Places, Rate
from protocol.quotas.quota import Limit, Unit

# Charges for several requests each that an edge process may have open: one for each call of a client.
_MOST_JOINT = 1 << 17


class LinkCharge(Charge):
    """What one request takes from the quota of its key, or several together, if it `is_joint`. The edge process that
    has it counts the request and its bytes, so it is neither begun nor ended here; but compute time and tokens are
    counted. Its place is free when as many `inferences` as were planned are answered, or all of it is over.

    Attributes:
        is_admitted: it has been charged what is known when it comes.
    """

    __slots__ = ("_is_over", "_refusal", "_unanswered", "is_admitted")

    def __init__(self, account: Account, inferences: int = 0) -> None:
        super().__init__(account)
        self._is_running = False
        self._is_over = False
        self._refusal: QuotaExceeded | None = None
        self._unanswered = inferences
        self.inferences = inferences
        self.is_admitted = False

    @property
    def is_limited(self) -> bool:
        return self.account.quota is not None

    def admit(self, model: str, size: float) -> None:
        """Only the first of several requests is charged, or refused for all.

        Raises:
            QuotaExceeded: nothing is charged.
            Cancelled: all of it is over already, and nobody would end it again.
        """
        if self._is_over:
            raise Cancelled("the call has ended that this request belongs to")
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        quota = self.account.quota
        if self.is_admitted:
            if not self._unanswered:  # one more than was planned
                self._unanswered = 1
                self._take_place()
            return
        if quota is None:
            return
        try:
            self.take((*quota.early, *quota.late_limits(model)) if model else quota.early, size)
        except QuotaExceeded as refusal:
            self._refusal = refusal
            raise
        self.is_admitted = True

    def answered(self) -> None:
        """A request of it is answered, or given up."""
        if not self.inferences:
            self.end()
            return
        self._unanswered -= 1
        if not self._unanswered:
            self._give_place()

    def end(self) -> None:
        """All of it is over. Idempotent."""
        self._is_over = True
        self._give_place()
        self._taken.clear()

    def _give_place(self) -> None:
        """If it has one: when it is refused after all, that has given it back."""
        for limit, meter in self.held:
            if limit.unit is Unit.CONCURRENT_REQUESTS and (meter, 1) in self._taken:
                self._taken.remove((meter, 1))
                meter.give(1)

    def _take_place(self) -> None:
        for limit, meter in self.held:
            if limit.unit is Unit.CONCURRENT_REQUESTS:
                self._taken.append((meter, 1))
                meter.take(1, self.account.now())


class JointCharges:
    """The charges for several requests each of one edge process, until that says what they have come to."""

    def __init__(self) -> None:
        self._open: dict[int, LinkCharge] = {}

    def __len__(self) -> int:
        return len(self._open)

    def of(self, received: Received, account: Account) -> LinkCharge:
        """That of a request that is charged together with others. Raises BrokenFrame."""
        number = received.charge
        found = self._open.get(number)
        if found is None:
            if len(self._open) >= _MOST_JOINT:
                raise BrokenFrame(f"it has {len(self._open)} charges whose end it has not told")
            found = self._open[number] = LinkCharge(account, received.inferences)
        elif found.account.name != account.name:
            raise BrokenFrame(f"it charges {number} to key {account.name!r}, and before to {found.account.name!r}")
        return found

    def end(self, number: int, text: memoryview) -> None:
        """What it has come to. Raises BrokenFrame."""
        told = decode_text(text, ChargedText)
        counted = told.counted or 0.0
        if not (0 <= told.tokens < math.inf and 0 <= counted < math.inf):
            raise BrokenFrame(f"its requests have cost {told.tokens} tokens, and {counted}")
        charge = self._open.pop(number, None)
        if charge is not None:  # else its key was gone
            tokens = told.tokens + (0.0 if charge.is_counted else counted)
            if tokens:
                charge.settle(Unit.TOKENS, tokens)
            charge.end()

    def end_all(self) -> None:
        """The edge process is gone."""
        charges, self._open = self._open, {}
        for charge in charges.values():
            charge.end()


def note_used(account: Account, used: UsedText) -> None:
    """Charge what an edge process has found to be used: bytes, tokens, and requests that it has refused by itself."""
    size = used.size
    for _ in range(used.requests):
        charge = LinkCharge(account)
        try:
            charge.admit(used.model, size)
        except QuotaExceeded:  # more than all is not used up by what was not run
            return
        charge.end()
        size = 0.0
    if used.tokens:
        account.usage.tokens += used.tokens
    quota = account.quota
    if quota is None:
        return
    limits: Iterable[Limit] = (*quota.early, *quota.late_limits(used.model)) if used.model else quota.early
    for limit in limits:
        amount = size if limit.unit is Unit.BYTES else used.tokens if limit.unit is Unit.TOKENS else 0.0
        if amount > 0:
            account.meter(limit).take(amount, account.now())
        elif amount < 0:
            account.meter(limit).give(-amount)


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
