"""Several ledgers with one store, in virtual time: what they admit together, alone, and together again."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

import pytest
import trio
import trio.testing

from actors.quotas.exchange import QuotaExchange
from actors.quotas.store import MOST_AT_ONCE
from protocol.errors import QuotaExceeded
from protocol.failures import CallbackFailures
from protocol.quotas.accounts import Account, Charge, Ledger, Terms
from protocol.quotas.leases import IDLE_SECONDS
from protocol.quotas.meters import Rate
from protocol.quotas.quota import Quota, Unit
from protocol.quotas.shared import Push, SharedMeters
from tests.actors.quotas.levels import Levels

INTERVAL = 0.1
LIMIT = Rate(60, 60.0, 10)  # one in a second, ten at once


class Replica:
    """A server, as far as quotas go."""

    def __init__(self, store: Levels, limits: dict[Unit, Rate | int] | None = None) -> None:
        self.ledger = Ledger(trio.current_time)
        self.meters = self.ledger.shared = SharedMeters()
        quota = Quota("q", {Unit.REQUESTS: LIMIT} if limits is None else limits, {})
        self.ledger.adopt([Terms(name, quota) for name in ("alice", "bob", *map(str, range(2000)))])
        self.exchange = QuotaExchange(self.meters, store, INTERVAL, CallbackFailures())

    @property
    def account(self) -> Account:
        return self.ledger.account("alice")

    def admitted(self, tries: int = 1000) -> int:
        """How many of so many requests are, now."""
        return sum(self.admit() is not None for _ in range(tries))

    def admit(self) -> Charge | None:
        try:
            return self.account.admit("m")
        except QuotaExceeded:
            return None


@pytest.fixture
def store() -> Levels:
    return Levels()


async def replicas(
    nursery: trio.Nursery, store: Levels, count: int, limits: dict[Unit, Rate | int] | None = None
) -> list[Replica]:
    made = [Replica(store, limits) for _ in range(count)]
    for each in made:
        await nursery.start(each.exchange.run)
    return made


async def test_what_one_has_admitted_the_others_do_not(
    store: Levels, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    one, other, third = await replicas(nursery, store, 3)
    assert one.admitted(6) == 6
    await trio.sleep(2 * INTERVAL)
    assert other.admitted(1) == 1  # from now on it asks
    await trio.sleep(2 * INTERVAL)
    assert [other.admitted(), one.admitted()] == [3, 3]  # neither knew of the other
    await trio.sleep(2 * INTERVAL)
    assert [one.admitted(), other.admitted()] == [0, 0]
    assert third.admitted(1) == 1  # it has not asked before
    await trio.sleep(2 * INTERVAL)
    assert third.admitted() == 0
    with pytest.raises(QuotaExceeded) as caught:
        third.account.admit("m")
    assert 2.5 < (caught.value.retry_after or 0) < 5  # what is owed has to flow back first


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_in_the_long_run_all_together_have_what_one_has(
    store: Levels, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, count: int
) -> None:
    """Each is asked for more than the whole: beyond the burst and what flows back there is what each admits before it
    knows."""
    servers = await replicas(nursery, store, count)
    rng, admitted, seconds = random.Random(count), 0, 300
    for _ in range(seconds * 20):
        for server in servers:
            admitted += server.admitted(rng.randrange(3))
        await trio.sleep(0.05)
    exact = LIMIT.burst + seconds / LIMIT.interval
    assert exact - count - 2 <= admitted <= exact + (count - 1) * LIMIT.burst + 2


async def test_what_is_given_back_is_there_for_others(
    store: Levels, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """As the tokens that a long answer might have had: also for one that has refused since, and was idle before."""
    one, other = await replicas(nursery, store, 2, {Unit.TOKENS: Rate(86400, 86400.0, 100)})
    charges = [server.account.admit("m") for server in (one, other)]
    charges[0].take_more(Unit.TOKENS, 90)
    charges[1].take_more(Unit.TOKENS, 10)
    await trio.sleep(2 * INTERVAL)
    with pytest.raises(QuotaExceeded):
        other.account.admit("m").take_more(Unit.TOKENS, 50)
    await trio.sleep(2 * IDLE_SECONDS)
    assert len(other.meters) == 0
    charges[0].settle(Unit.TOKENS, 5, taken=90)
    await trio.sleep(2 * INTERVAL)
    with pytest.raises(QuotaExceeded):  # it does not know yet
        other.account.admit("m").take_more(Unit.TOKENS, 90)
    await trio.sleep(2 * INTERVAL)
    other.account.admit("m").take_more(Unit.TOKENS, 90)


async def test_what_is_not_used_is_not_exchanged(
    store: Levels, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    (one,) = await replicas(nursery, store, 1)
    await trio.sleep(100)
    assert store.calls == 0
    one.admitted(1)
    await trio.sleep(INTERVAL / 2)
    assert store.calls == 1  # at once, where there was nothing before
    await trio.sleep(2 * IDLE_SECONDS)
    seen = store.calls
    assert one.exchange.figures.limits == 0
    await trio.sleep(100)
    assert store.calls == seen
    assert IDLE_SECONDS / INTERVAL / 2 < seen < 2 * IDLE_SECONDS / INTERVAL


async def test_many_limits_go_in_several_calls(
    store: Levels, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    one, other = await replicas(nursery, store, 2)
    for name in range(2 * MOST_AT_ONCE + 1):
        one.ledger.account(str(name)).admit("m")
    await trio.sleep(INTERVAL / 2)
    assert store.calls == 3
    assert one.exchange.figures.succeeded == 1
    last = other.ledger.account(str(2 * MOST_AT_ONCE))
    last.admit("m")
    await trio.sleep(INTERVAL / 2)
    assert "r=8;" in dict(last.resume("m").fields())["ratelimit"]


async def test_without_the_store_each_counts_for_itself_and_then_together_again(
    store: Levels, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one, other = await replicas(nursery, store, 2)
    assert [one.admitted(3), other.admitted(3)] == [3, 3]
    await trio.sleep(2 * INTERVAL)
    store.is_away = True
    await trio.sleep(2 * INTERVAL)
    assert [one.admitted(), other.admitted()] == [4, 4]  # of what was free
    for _ in range(100):  # each admits the whole rate
        await trio.sleep(1.0)
        assert 0 < one.admitted() + other.admitted() < 4
    assert [record.message for record in caplog.records if "quota store" in record.message] == [
        "the quota store: nobody is there; until it is there again this server counts for itself what its keys use"
    ] * 2
    figures = one.exchange.figures
    assert (figures.is_up, figures.failed > 50) == (False, True)
    store.is_away = False
    await trio.sleep(2.0)
    assert one.exchange.figures.is_up
    assert sum("is there again; quotas" in record.message for record in caplog.records) == 2
    # No debt of what each has admitted alone: the next one is free in about a second.
    for _ in range(4):
        await trio.sleep(0.5)
        if found := one.admitted() + other.admitted():
            break
    assert 0 < found <= 3


async def test_a_store_that_has_lost_all_is_told_it_again(
    store: Levels, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    one, other = await replicas(nursery, store, 2)
    assert [one.admitted(5), other.admitted(5)] == [5, 5]
    await trio.sleep(2 * INTERVAL)
    store.clear()
    await trio.sleep(2 * INTERVAL)
    assert [one.admitted(), other.admitted()] == [0, 0]


async def test_the_end_pushes_what_was_used_last(
    store: Levels, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    (stays,) = await replicas(nursery, store, 1)
    async with trio.open_nursery() as own:
        (ends,) = await replicas(own, store, 1)
        ends.admitted(1)
        await trio.sleep(INTERVAL / 2)
        assert ends.admitted() == 9
        own.cancel_scope.cancel()
    assert store.is_closed
    stays.admitted(1)
    await trio.sleep(INTERVAL / 2)
    assert stays.admitted() == 0


async def test_a_limit_that_is_changed_or_gone_leaves_the_others_alone(
    store: Levels, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    one, other = await replicas(nursery, store, 2)
    charge = one.admit()
    assert charge is not None
    assert other.admitted(1) == 1
    await trio.sleep(2 * INTERVAL)
    one.ledger.adopt([Terms("alice", Quota("q", {Unit.REQUESTS: Rate(60, 60.0, 20)}, {}))])
    assert one.admitted() == 18
    one.ledger.adopt([Terms("bob")])
    charge.end()
    await trio.sleep(2 * INTERVAL)
    assert other.admitted() == 0


class Broken(Levels):
    """A store with a defect, in whatever it is asked."""

    is_closed = False

    async def exchange(self, pushes: Sequence[Push]) -> Sequence[float]:
        raise KeyError("a defect")

    async def close(self) -> None:
        self.is_closed = True
        raise KeyError("a defect")


async def test_a_defect_of_the_store_does_not_end_the_server_but_is_noted(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = Broken()
    async with trio.open_nursery() as server:
        (one,) = await replicas(server, store, 1)
        assert one.admitted(1) == 1
        await trio.sleep(3 * INTERVAL)
        server.cancel_scope.cancel()
    assert store.is_closed
    assert "a defect of the server" in caplog.text
