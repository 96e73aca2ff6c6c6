"""Told accounts: those of keys in another process than the one that has their quotas, and charges their requests.

    edge → told charge → link → charge (admits, or refuses) → link → told charge: refused, or what is left

What a request costs goes with the request, so none that is allowed waits for an answer of its own; a refusal comes as
the request's answer. What only this process knows is told when the request has ended: the bytes of an answer, and the
tokens of a call, where no engine has counted them. What the keys have used is counted here, but for tokens.
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

_NOTHING: frozenset[str] = frozenset()
# In place of the number of a request that is charged without one.
_UNNUMBERED = -1


class Desk(Protocol):
    """The process that has the quotas."""

    def tell_used(self, key: str, model: str, requests: int, size: float, tokens: float) -> None:
        """A key has used bytes and tokens beside those of its requests; and requests, of which that process has not
        heard."""

    def tell_charged(self, number: int, tokens: float, counted: float | None) -> None:
        """The requests that were charged together as one, by the number of the first, have ended. They have cost these
        tokens; and those that were `counted` if no engine has counted any there."""

    def flush(self) -> None:
        """Send what was told, before anything else is done."""

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
        desk = self._ledger.desk
        if desk is None:
            return super().admit(model, size)
        charge = ToldCharge(self, self._ledger.limited.get(self.name), model or "", desk)
        charge.begin(size)
        return charge

    def may_be_refused(self, model: str, size: int) -> bool:
        """Of what is so large that it should not be read first."""
        return size > READ_FIRST and self.now() < self.refused_until


class ToldCharge(Charge):
    """One request of a key; `limited` is None where that has no quota. `held` is what was told last of its limits, as
    meters of its own.

    Attributes:
        is_limited: its key has a quota, as far as is known here.
        counted: bytes that the account's usage has of it.
        is_cut: one of its requests was given up.
    """

    __slots__ = (
        *("_announced", "_desk", "_has_ended", "_is_open", "_limited", "_model", "_number", "_tokens", "_untold"),
        *("counted", "is_cut", "is_limited"),
    )

    def __init__(self, account: Account, limited: frozenset[str] | None, model: str, desk: Desk) -> None:
        super().__init__(account)
        self.is_limited = limited is not None
        self.is_cut = False
        self.counted = 0.0
        self._announced = 0
        self._limited = limited or _NOTHING
        self._model = model
        self._desk = desk
        self._has_ended = False
        self._is_open = False  # the other process has a charge of several requests
        self._number = 0  # of the request that has told of it; 0 for none
        self._untold = 0.0  # bytes
        self._tokens = 0.0

    @property
    def untold(self) -> float | None:
        """The bytes to tell with its next request; None where nothing is limited."""
        if not self.is_limited:
            return None
        return 0.0 if self._number else self._untold  # later ones are told at the end

    def number_with(self, number: int) -> int:
        """What to tell with its next request, of this number: that of the first where several are charged together,
        else 0."""
        return (self._number or number) if self.is_joint else 0

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
        elif unit is Unit.TOKENS:
            self._tokens += amount - taken

    def announce(self, model: str, number: int) -> None:
        """A request of this number goes to the other process now, with what was untold."""
        self._model = model
        self._announced += 1
        if not self._number:
            self._number = number
            self._untold = 0.0
            self._is_open = self.is_joint

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
        if self._number or not self._is_running or not self.is_limited:
            return
        self._number = _UNNUMBERED
        untold, self._untold = self._untold, 0.0
        try:
            await self._desk.admit(self.account.name, self._model, untold)
        except QuotaExceeded as refusal:
            self.refuse(refusal)
            raise

    def end_inferences(self) -> None:
        """Where several requests have one charge in the other process, that ends. Its place is free there when all that
        were planned are answered. Where they are not, it is told at once, for the client may send its next request by
        another way."""
        is_told, is_whole = self._tell_charged(), self._announced >= self.inferences and not self.is_cut
        if is_told and not is_whole and Unit.CONCURRENT_REQUESTS in self._limited:
            self._desk.flush()

    def end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._tell_charged()
        if not self._is_running:  # it was refused, or withdrawn
            return
        count, self.count_tokens = self.count_tokens, None
        super().end()
        size = self._untold if self.is_limited else 0.0
        tokens = self._tokens if count is None else self._tokens + count()
        requests = int(self.is_limited and not self._number)
        if requests or tokens or (size and Unit.BYTES in self._limited):
            self._desk.tell_used(self.account.name, self._model, requests, size, tokens)

    def _tell_charged(self) -> bool:
        """Whether there was anything to tell: the other process waits for the end of a charge of several requests."""
        if not self._is_open:
            return False
        self._is_open = False
        tokens, self._tokens = self._tokens, 0.0
        count, self.count_tokens = self.count_tokens, None  # whether an engine has counted is known there
        if not self._is_running:
            tokens, count = 0.0, None
        self._desk.tell_charged(self._number, tokens, None if count is None else count())
        return True
