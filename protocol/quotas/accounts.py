"""Accounts of keys: admit requests under a quota, and charge what they use. One ledger for each server.

    account = ledger.account("alice")
    charge = await account.admit_when_known()    # by the head of a request; raises QuotaExceeded
    await charge.name_model_when_known("llama")  # once it is known, if it was not; raises, too
    charge.settle(Unit.TOKENS, 120)              # as it becomes known, also behind the end
    charge.end()                                 # when the request has ended, in whatever way

State is kept for the keys of the file only; that of a key which is gone from it ends with its last request.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import msgspec

from protocol.errors import QuotaExceeded
from protocol.quotas.fields import Fields, rate_limit_fields
from protocol.quotas.leases import LeasedPlaces
from protocol.quotas.meters import Bucket, Meter, Places
from protocol.quotas.quota import Limit, Quota, Unit
from protocol.quotas.shared import SharedMeters
from protocol.quotas.usage import MOST_NAMED, OTHER, Usage


class Terms(msgspec.Struct, frozen=True):
    """What the file says of one key. Without a quota nothing is limited; `weight` is 0 where no key of the file has
    one."""

    name: str
    quota: Quota | None = None
    weight: float = 0.0


class Account:
    """What one key may use, and has used. Made by the ledger. Implements `fair_queue.Holder`.

    Attributes:
        weight: its share of models for which several keys wait; 0 where requests go as they come.
        usage: what is counted of it, perhaps together with others.
    """

    __slots__ = ("_clock", "_meters", "_shared", "name", "quota", "usage", "weight")

    def __init__(self, terms: Terms, clock: Callable[[], float], shared: SharedMeters | None = None) -> None:
        self.name = terms.name
        self.usage = Usage()
        self.quota = terms.quota
        self.weight = terms.weight
        self._clock = clock
        self._shared = shared
        self._meters: dict[tuple[Unit, str], Meter] = {}

    def adopt(self, terms: Terms) -> None:
        """The file says something else: what is used is used under the new limits, too."""
        self.weight = terms.weight
        if terms.quota is self.quota:
            return
        self.quota = quota = terms.quota
        kept: dict[tuple[Unit, str], Meter] = {}
        for key, meter in self._meters.items():  # and not by all limits: thousands of models may have their own
            limit = None if quota is None else quota.limit(*key)
            if limit is not None:
                _change(meter, limit, self._clock())
                kept[key] = meter
        self._meters = kept

    def admit(self, model: str | None = None, size: int = 0) -> Charge:
        """Charge a request of `size` bytes, as far as its model is known or does not matter.

        Raises:
            QuotaExceeded: it is too much now, and nothing is charged.
        """
        charge = Charge(self)
        quota = self.quota
        if quota is not None:
            limits = quota.early if model is None else (*quota.early, *quota.late_limits(model))
            charge.take(limits, size)
        charge.begin(size)
        return charge

    async def admit_when_known(self, model: str | None = None, size: int = 0) -> Charge:
        """As `admit`, once it is known whether a request may run beside those of other servers: without a wait unless
        none of the places is free that this one has. Raises QuotaExceeded."""
        await self.wait_known(model, is_early=True)
        return self.admit(model, size)

    async def wait_known(self, model: str | None, *, is_early: bool = False) -> None:
        """As `admit_when_known`, of the limits that depend on the model; if it `is_early`, of the others, too."""
        quota = self.quota
        if quota is not None and self._shared is not None:
            early = quota.early if is_early else ()
            await self._wait_known(early if model is None else (*early, *quota.late_limits(model)))

    def is_known(self, model: str) -> bool:
        """Whether `admit_when_known` would not wait."""
        quota = self.quota
        if quota is None or self._shared is None:
            return True
        places = [
            self.meter(limit)
            for limit in (*quota.early, *quota.late_limits(model))
            if limit.unit is Unit.CONCURRENT_REQUESTS
        ]
        return not any(isinstance(meter, LeasedPlaces) and meter.is_open() for meter in places)

    async def _wait_known(self, limits: Iterable[Limit]) -> None:
        for limit in limits:  # of one request at most one is a number of requests
            if limit.unit is Unit.CONCURRENT_REQUESTS:
                meter = self.meter(limit)
                if isinstance(meter, LeasedPlaces):
                    await meter.wait_known()

    def resume(self, model: str) -> Charge:
        """Charge what a request costs from now on that was admitted before, perhaps by a server that has ended."""
        charge = Charge(self)
        quota = self.quota
        if quota is not None:
            charge.held = [(limit, self.meter(limit)) for limit in (*quota.early, *quota.late_limits(model))]
        charge.is_named = True
        charge.resume()
        return charge

    def may_be_refused(self, model: str, size: int) -> bool:
        """Whether `admit` would refuse; nothing is charged."""
        quota = self.quota
        if quota is None:
            return False
        now = self._clock()
        limits = (*quota.early, *quota.late_limits(model))
        return any(self.meter(limit).wait(_cost(limit.unit, size), now) for limit in limits)

    def meter(self, limit: Limit) -> Meter:
        """The meter of one of its limits."""
        key = limit.unit, limit.model
        meter = self._meters.get(key)
        if meter is None:
            shared = self._shared
            meter = limit.meter() if shared is None else shared.meter(self.name, limit)
            self._meters[key] = meter
        return meter

    def now(self) -> float:
        """The ledger's time."""
        return self._clock()


class Charge:
    """One request of a key, from its admission on."""

    __slots__ = (
        *("_is_running", "_size", "_taken", "account", "count_tokens", "goes_on", "held", "is_counted"),
        *("inferences", "is_named"),
    )

    def __init__(self, account: Account) -> None:
        self.account = account
        self.held: list[tuple[Limit, Meter]] = []  # that hold for it
        self.is_counted = False  # an engine does it, which knows its tokens best
        self.count_tokens: Callable[[], float] | None = None  # at its end, where no engine does
        self.goes_on = False  # in the background, when it has ended for its client
        self.inferences = 0  # that are to be charged to it as one request; 0 for one by itself
        self.is_named = False  # its model was known when it was admitted, perhaps long ago
        self._taken: list[tuple[Meter, float]] = []  # at admission
        self._size = 0.0
        self._is_running = True

    @property
    def is_joint(self) -> bool:
        """Whether it is for a call of inferences, one beside or after the other."""
        return self.inferences > 0

    def begin(self, size: int) -> None:
        """It is admitted."""
        usage = self.account.usage
        usage.running += 1
        usage.bytes += size

    def take(self, limits: Iterable[Limit], size: float) -> None:
        """Charge what is known when it comes. Raises QuotaExceeded."""
        account, now = self.account, self.account.now()
        self._size = size
        found = [(limit, account.meter(limit), _cost(limit.unit, size)) for limit in limits]
        self.held += [(limit, meter) for limit, meter, _ in found]
        waits = {limit: meter.wait(cost, now) for limit, meter, cost in found}
        if any(waits.values()):
            raise self._refused(waits)
        for _, meter, cost in found:
            if cost:
                meter.take(cost, now)
                self._taken.append((meter, cost))

    def name_model(self, model: str) -> None:
        """Its model is known, as it was not when it was admitted. Raises QuotaExceeded; then nothing is charged."""
        quota = self.account.quota
        if quota is not None and not self.is_named and (limits := quota.late_limits(model)):
            try:
                self.take(limits, self._size)
            except QuotaExceeded:
                self._stop()
                raise

    async def name_model_when_known(self, model: str) -> None:
        """As `name_model`, and as `Account.admit_when_known`. Raises QuotaExceeded."""
        if not self.is_named:
            await self.account.wait_known(model)
        self.name_model(model)

    def take_more(self, unit: Unit, amount: float) -> None:
        """Charge what the request is found to cost before it has begun; to be settled. Raises QuotaExceeded."""
        now = self.account.now()
        found = [(limit, meter) for limit, meter in self.held if limit.unit is unit]
        waits = {limit: meter.wait(amount, now) for limit, meter in found}
        if any(waits.values()):
            self._stop()
            raise self._refused(waits)
        for _, meter in found:
            meter.take(amount, now)

    def settle(self, unit: Unit, amount: float, taken: float = 0.0) -> None:
        """It has cost this amount, of which so much was taken before."""
        usage = self.account.usage
        if unit is Unit.TOKENS:
            usage.tokens += amount
        elif unit is Unit.COMPUTE_SECONDS:
            usage.compute_seconds += amount
        elif unit is Unit.BYTES:
            usage.bytes += max(0.0, amount - taken)  # which were counted as they were announced
        for limit, meter in self.held:
            if limit.unit is unit:
                if amount > taken:
                    meter.take(amount - taken, self.account.now())
                elif amount < taken:
                    meter.give(taken - amount)

    def _stop(self) -> None:
        """It was admitted, and is not run after all."""
        if self._is_running:
            self._is_running = False
            self.account.usage.running -= 1

    def end(self) -> None:
        """It has ended, in whatever way. Idempotent."""
        if not self._is_running:
            return
        self._stop()
        self.account.usage.requests += not self.goes_on
        for limit, meter in self.held:
            if limit.unit is Unit.CONCURRENT_REQUESTS:
                meter.give(1)
        if self.count_tokens is not None and not (self.is_counted or self.goes_on):
            self.settle(Unit.TOKENS, self.count_tokens())

    def end_inferences(self) -> None:
        """None of its inferences runs any more, and its client does not know that yet. Here they are charged as they
        end; where another process does, it is told. Idempotent."""

    def withdraw(self, size: int) -> None:
        """Another process has run the request, and charged it: here it, and the `size` bytes of it, do not count."""
        self._stop()
        self.held.clear()
        self.account.usage.bytes -= size

    def resume(self) -> None:
        """It runs now in the background, until another `end`."""
        self._is_running, self.goes_on = True, False
        self.account.usage.running += 1
        for limit, meter in self.held:
            if limit.unit is Unit.CONCURRENT_REQUESTS:
                meter.take(1, self.account.now())

    def fields(self) -> Fields:
        """What is allowed under the limits that hold for it, and left of that, as header fields."""
        return rate_limit_fields(self.held, self.account.now()) if self.held else ()

    def _refused(self, waits: dict[Limit, float]) -> QuotaExceeded:
        """Its refusal: nothing of what was taken at admission is used."""
        for meter, cost in self._taken:
            meter.give(cost)
        self._taken.clear()
        account = self.account
        worst = max(waits, key=lambda limit: waits[limit])
        account.usage.refusals[worst.unit] += 1
        quota = "" if account.quota is None else f" of quota '{account.quota.name}'"
        seconds = waits[worst]
        shown = f"{seconds:.3g}" if seconds < 100 else f"{seconds:.0f}"
        return QuotaExceeded(
            f"key '{account.name}' has reached the limit{quota}, {worst}; try again in {shown} s",
            retry_after=seconds,
            limit=worst.name,
            fields=rate_limit_fields(self.held, account.now(), waits),
        )


class Ledger:
    """The accounts of one server's keys, by their names. `clock` gives the time in seconds, which never goes back.

    Accounts are made as they are asked for: a file may have thousands of keys, and is taken in one go.

    Attributes:
        shared: what other servers use a part of, of the accounts that are made from now on; None for nothing.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.shared: SharedMeters | None = None
        self._clock = clock
        self._terms: dict[str, Terms] = {}
        self._named: dict[str, None] = {}  # those with numbers of their own, in the order of the file
        self._accounts: dict[str, Account] = {}
        self._others = Usage()

    def adopt(self, terms: Iterable[Terms]) -> None:
        """What the file says now, of each key and of callers without one. Accounts of the same names go on."""
        self._terms = {each.name: each for each in terms}
        self._named = {name: None for name in itertools.islice(self._terms, MOST_NAMED) if name != OTHER}
        before, self._accounts = self._accounts, {}
        for name, account in before.items():
            each = self._terms.get(name)
            if each is not None:
                account.adopt(each)
                self._accounts[name] = account
                self._give_usage(account)

    def _give_usage(self, account: Account) -> None:
        if account.name not in self._named:
            account.usage = self._others
        elif account.usage is self._others:
            account.usage = Usage()

    def usage(self) -> dict[str, Usage]:
        """What was counted of each key, by name: of those that stand first in the file, and of all others together."""
        found = {name: self.account(name).usage for name in self._named}
        return found if len(found) == len(self._terms) else {**found, OTHER: self._others}

    def usage_of(self, name: str) -> Usage | None:
        """Where it is counted what was used under this name, as `usage` has it; None where the name is gone."""
        if name == OTHER and OTHER not in self._named:
            return self._others
        return self.account(name).usage if name in self._terms else None

    def account(self, name: str) -> Account:
        """The account of a name of the file. Raises KeyError."""
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = self._made(self._terms[name])
            self._give_usage(account)
        return account

    def _made(self, terms: Terms) -> Account:
        return Account(terms, self._clock, self.shared)


def _cost(unit: Unit, size: float) -> float:
    """Of a request of `size` bytes, as far as it is known when it comes."""
    if unit is Unit.REQUESTS or unit is Unit.CONCURRENT_REQUESTS:
        return 1
    return size if unit is Unit.BYTES else 0


def _change(meter: Meter, limit: Limit, now: float) -> None:
    if isinstance(meter, Places) and isinstance(limit.amount, int):
        meter.limit = limit.amount
    elif isinstance(meter, Bucket) and not isinstance(limit.amount, int) and meter.rate != limit.amount:
        meter.change(limit.amount, now)
