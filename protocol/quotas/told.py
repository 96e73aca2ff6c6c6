"""Told accounts: those of keys in another process than the one that has their quotas, and charges their requests.

    edge → told charge → link → charge (admits, or refuses) → link → told charge: refused, or what is left

What a request costs goes with the request, so none that is allowed waits for an answer of its own; a refusal comes as
the request's answer. What only this process knows, the bytes of an answer, is told when the request has ended. What the
keys have used is counted here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

from protocol.errors import QuotaExceeded
from protocol.quotas.accounts import Account, Charge, Ledger, Terms
from protocol.quotas.quota import Unit

# Bytes of a request that are read before its key may be known to be refused.
READ_FIRST = 16 * 1024


class Desk(Protocol):
    """The process that has the quotas."""

    def tell_used(self, key: str, model: str, requests: int, size: float) -> None:
        """A key has used bytes beside those of its requests; and requests, of which that process has not heard."""

    async def admit(self, key: str, model: str, size: float) -> None:
        """Charge a request that does not go there. Raises ServerError."""


class ToldLedger(Ledger):
    """`limited` has the units that the quota of each key limits, by its name; of all others nothing is limited."""

    def __init__(self, clock: Callable[[], float], desk: Desk | None = None) -> None:
        super().__init__(clock)
        self.limited: Mapping[str, frozenset[str]] = {}
        self.desk = desk

    def _made(self, terms: Terms) -> Account:
        return ToldAccount(terms, self._clock, self)


class ToldAccount(Account):
    """One key. Admits all, for the time being. By what was said of its last refusal it may be refused again before
    `refused_until`."""

    __slots__ = ("_ledger", "refused_until")

    def __init__(self, terms: Terms, clock: Callable[[], float], ledger: ToldLedger) -> None:
        super().__init__(terms, clock)
        self._ledger = ledger
        self.refused_until = -math.inf

    def admit(self, model: str | None = None, size: int = 0) -> Charge:
        limited = self._ledger.limited.get(self.name)
        if limited is None or self._ledger.desk is None:
            return super().admit(model, size)
        charge = ToldCharge(self, limited, model or "", self._ledger.desk)
        charge.begin(size)
        return charge

    def may_be_refused(self, model: str, size: int) -> bool:
        """Of what is so large that it should not be read first."""
        return size > READ_FIRST and self.now() < self.refused_until


class ToldCharge(Charge):
    """One request of a key with a quota. `held` is what was told last of its limits, as meters of its own."""

    __slots__ = ("_desk", "_is_told", "_limited", "_model", "_untold", "counted")

    def __init__(self, account: Account, limited: frozenset[str], model: str, desk: Desk) -> None:
        super().__init__(account)
        self._limited = limited
        self._model = model
        self._desk = desk
        self._is_told = False
        self._untold = 0.0  # bytes
        self.counted = 0.0  # bytes that the account's usage has of it

    def begin(self, size: int) -> None:
        super().begin(size)
        self._untold += size
        self.counted += size

    def name_model(self, model: str) -> None:
        self._model = model

    def settle(self, unit: Unit, amount: float, taken: float = 0.0) -> None:
        super().settle(unit, amount, taken)
        if unit is Unit.BYTES:
            self._untold += amount - taken
            self.counted += max(0.0, amount - taken)

    def announce(self, model: str) -> float:
        """The request goes to the other process now: its bytes so far, for which that charges it."""
        self._is_told = True
        self._model = model
        untold, self._untold = self._untold, 0.0
        return untold

    def refuse(self, refusal: QuotaExceeded) -> None:
        """It was not admitted: nothing of it counts."""
        if isinstance(self.account, ToldAccount):
            self.account.refused_until = self.account.now() + (refusal.retry_after or 0.0)
        if self._is_running:
            self._stop()
            self.account.usage.bytes -= self.counted

    async def admit_unsent(self) -> None:
        """Have it charged, for it does not go there: something is wrong with it. Raises QuotaExceeded, if that is why
        it is to be refused."""
        if self._is_told or not self._is_running:
            return
        try:
            await self._desk.admit(self.account.name, self._model, self.announce(self._model))
        except QuotaExceeded as refusal:
            self.refuse(refusal)
            raise

    def end(self) -> None:
        if not self._is_running:
            return
        super().end()
        if not self._is_told:
            self._desk.tell_used(self.account.name, self._model, 1, self._untold)
        elif self._untold and Unit.BYTES in self._limited:
            self._desk.tell_used(self.account.name, self._model, 0, self._untold)
