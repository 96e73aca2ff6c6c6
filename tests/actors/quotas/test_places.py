"""Several servers with one limit of requests at once, in virtual time: together they never run more than it says, and
refuse nothing while a place is free."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
from trio.testing import MockClock

from actors.quotas.exchange import QuotaExchange
from protocol.errors import QuotaExceeded
from protocol.failures import CallbackFailures
from protocol.quotas.accounts import Account, Charge, Ledger, Terms
from protocol.quotas.leases import IDLE_SECONDS, LEASE_SECONDS, Claim, Grant
from protocol.quotas.quota import Quota, Unit
from protocol.quotas.shared import SharedMeters
from tests.actors.quotas.levels import Levels, SharedLeases

INTERVAL = 0.1


class Replica:
    """A server, as far as requests at once go."""

    def __init__(self, leases: SharedLeases, limit: int = 4, models: dict[str, int] | None = None) -> None:
        self.store = Levels(leases)
        self.ledger = Ledger(trio.current_time)
        self.meters = self.ledger.shared = SharedMeters()
        self.adopt(limit, models)
        self.exchange = QuotaExchange(self.meters, self.store, INTERVAL, CallbackFailures())
        self.running: list[Charge] = []

    def adopt(self, limit: int, models: dict[str, int] | None = None) -> None:
        unit = Unit.CONCURRENT_REQUESTS
        by_model = {name: {unit: amount} for name, amount in (models or {}).items()}
        self.ledger.adopt([Terms("alice", Quota("q", {unit: limit}, by_model))])

    @property
    def account(self) -> Account:
        return self.ledger.account("alice")

    async def begin(self, model: str = "m") -> bool:
        """Whether a request is admitted; then it runs until `end`."""
        try:
            self.running.append(await self.account.admit_when_known(model))
        except QuotaExceeded:
            return False
        return True

    async def begin_several(self, count: int) -> int:
        """How many are admitted of so many that come in the same moment."""
        before = len(self.running)
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(self.begin)
        return len(self.running) - before

    def end(self, count: int = 1) -> None:
        for _ in range(count):
            self.running.pop().end()

    @property
    def remaining(self) -> int:
        """As the header fields say it."""
        state = dict(self.running[0].fields())["ratelimit"]
        return int(state.split(";")[1].removeprefix("r="))


Make = Callable[..., Awaitable[Replica]]


@pytest.fixture
def leases() -> SharedLeases:
    return SharedLeases()


@pytest.fixture
def make(leases: SharedLeases, nursery: trio.Nursery) -> Make:
    async def make(limit: int = 4, models: dict[str, int] | None = None, own: trio.Nursery | None = None) -> Replica:
        replica = Replica(leases, limit, models)
        await (own or nursery).start(replica.exchange.run)
        return replica

    return make


async def test_all_servers_together_run_what_is_allowed_whoever_is_asked(autojump_clock: MockClock, make: Make) -> None:
    one, other = await make(), await make()
    started = trio.current_time()
    assert await one.begin_several(10) == 4
    assert trio.current_time() - started < INTERVAL / 2  # it waits for a call of the store, not for an interval
    assert await other.begin_several(10) == 0
    await trio.sleep(2 * INTERVAL)
    assert one.remaining == 0
    one.end(3)
    await trio.sleep(3 * INTERVAL)
    assert await other.begin_several(10) == 3
    assert not await one.begin()


async def test_both_asked_in_the_same_moment(autojump_clock: MockClock, make: Make) -> None:
    servers = [await make() for _ in range(3)]
    async with trio.open_nursery() as nursery:
        for server in servers:
            nursery.start_soon(server.begin_several, 10)
    assert sum(len(server.running) for server in servers) == 4


async def test_no_request_waits_while_a_leased_place_is_free(autojump_clock: MockClock, make: Make) -> None:
    one = await make()
    assert await one.begin()
    one.end()
    calls = one.store.lease_calls
    started = trio.current_time()
    for _ in range(100):
        assert await one.begin()
        one.end()
    assert trio.current_time() == started
    assert one.store.lease_calls == calls


async def test_places_that_another_server_does_not_use_are_given_back(autojump_clock: MockClock, make: Make) -> None:
    one, other = await make(20), await make(20)
    assert await one.begin_several(16) == 16
    one.end(16)  # and goes on to have places for the next ones
    await trio.sleep(INTERVAL)
    started = trio.current_time()
    assert await other.begin_several(20) == 20
    assert trio.current_time() - started < 4 * INTERVAL


async def test_a_server_that_is_killed_frees_what_it_held_within_seconds(
    autojump_clock: MockClock, make: Make, leases: SharedLeases
) -> None:
    stays = await make()
    async with trio.open_nursery() as own:
        killed = await make(own=own)
        assert await killed.begin_several(4) == 4
        killed.store.is_away = True  # it gives nothing back
        own.cancel_scope.cancel()
    assert not await stays.begin()
    await trio.sleep(LEASE_SECONDS / 2)
    assert not await stays.begin()
    await trio.sleep(LEASE_SECONDS / 2 + 2 * INTERVAL)
    assert await stays.begin_several(10) == 4


async def test_a_server_that_ends_gives_back_what_is_not_in_use_at_once(autojump_clock: MockClock, make: Make) -> None:
    stays = await make()
    async with trio.open_nursery() as own:
        ends = await make(own=own)
        assert await ends.begin_several(4) == 4
        ends.end(4)
        own.cancel_scope.cancel()
    assert await stays.begin_several(4) == 4


async def test_leases_are_renewed_while_requests_run(autojump_clock: MockClock, make: Make) -> None:
    one, other = await make(), await make()
    assert await one.begin_several(4) == 4
    await trio.sleep(10 * LEASE_SECONDS)
    assert not await other.begin()
    one.end(4)
    await trio.sleep(2 * IDLE_SECONDS)
    assert one.exchange.figures.limits == other.exchange.figures.limits == 0
    calls = one.store.lease_calls
    await trio.sleep(100)
    assert one.store.lease_calls == calls
    assert await other.begin_several(10) == 4


async def test_without_the_store_each_counts_for_itself(
    autojump_clock: MockClock, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one, other = await make(), await make()
    assert await one.begin_several(3) == 3
    one.store.is_away = other.store.is_away = True
    await trio.sleep(2 * INTERVAL)
    assert [await one.begin_several(10), await other.begin_several(10)] == [1, 4]
    assert not one.exchange.figures.is_up
    assert one.remaining == 0
    one.store.is_away = other.store.is_away = False
    await trio.sleep(2.0)
    assert one.exchange.figures.is_up
    one.end(2)
    other.end(1)
    await trio.sleep(2 * INTERVAL)
    assert [await one.begin(), await other.begin()] == [False, False]  # five run
    one.end(2)
    await trio.sleep(2 * INTERVAL)
    assert await other.begin_several(10) == 1
    lines = [record.message for record in caplog.records if "quota store" in record.message]
    assert lines.count("the quota store is there again; requests at once are those of all its servers together") == 2
    assert sum("counts for itself how many requests of a key run at once" in line for line in lines) == 2


async def test_a_store_that_has_lost_all_is_told_it_again(
    autojump_clock: MockClock, make: Make, leases: SharedLeases
) -> None:
    one, other = await make(), await make()
    assert [await one.begin_several(2), await other.begin_several(10)] == [2, 2]
    leases.clear()
    await trio.sleep(2 * INTERVAL)
    assert [await one.begin(), await other.begin()] == [False, False]


async def test_a_defect_of_the_store_lets_no_request_wait_for_ever(
    autojump_clock: MockClock, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(claims: Sequence[Claim]) -> Sequence[Grant]:
        raise KeyError("a defect")

    one = await make()
    monkeypatch.setattr(one.store, "lease", broken)
    with trio.fail_after(10):
        assert await one.begin_several(10) == 4
    await trio.sleep(1.0)
    monkeypatch.undo()
    await trio.sleep(1.0)
    other = await make()
    assert not await other.begin()


async def test_a_store_that_hangs_is_away(
    autojump_clock: MockClock, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hanging(claims: Sequence[Claim]) -> Sequence[Grant]:
        await trio.sleep_forever()
        raise AssertionError

    one = await make()
    monkeypatch.setattr(one.store, "lease", hanging)
    with trio.fail_after(10):
        assert await one.begin_several(10) == 4


async def test_a_request_that_gives_up_waits_no_more(
    autojump_clock: MockClock, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await make()
    with trio.move_on_after(0.0005) as scope:
        await one.begin()
    assert scope.cancelled_caught
    assert await one.begin_several(4) == 4


async def test_limits_of_models_and_limits_that_change(autojump_clock: MockClock, make: Make) -> None:
    one, other = await make(2, {"large": 1}), await make(2, {"large": 1})
    assert [await one.begin("large"), await other.begin("large")] == [True, False]
    assert [await one.begin("m"), await other.begin("m"), await one.begin("m")] == [True, True, False]
    early = await other.account.admit_when_known()  # of a model that is not known yet
    with pytest.raises(QuotaExceeded, match="1 requests to model 'large' at once"):
        await early.name_model_when_known("large")
    for each in (one, other):
        each.adopt(3, {"large": 1})
    await trio.sleep(2 * INTERVAL)
    assert [await one.begin("m"), await other.begin("m")] == [True, False]
    one.adopt(1)
    one.end(2)
    await trio.sleep(2 * INTERVAL)
    assert not await one.begin("m")


async def test_a_limit_that_was_gone_for_a_while_goes_on(autojump_clock: MockClock, make: Make) -> None:
    one, other = await make(), await make()
    assert await one.begin_several(3) == 3
    one.ledger.adopt([Terms("bob")])
    one.adopt(4)
    await trio.sleep(2 * INTERVAL)
    assert await other.begin_several(4) == 1
    assert not await one.begin()


@pytest.mark.parametrize("seed", range(8))
async def test_at_random_never_too_many_and_none_refused_for_long(
    autojump_clock: MockClock, make: Make, seed: int
) -> None:
    rng = random.Random(seed)
    limit = rng.choice([1, 2, 5, 30])
    servers = [await make(limit) for _ in range(rng.choice([2, 3, 5]))]
    counts = {True: 0, False: 0}

    async def call(server: Replica) -> None:
        is_admitted = await server.begin()
        counts[is_admitted] += 1
        assert sum(len(each.running) for each in servers) <= limit
        if is_admitted:
            await trio.sleep(rng.choice([0.0, 0.01, 0.2, 2.0]))
            server.end()

    async with trio.open_nursery() as nursery:
        for _ in range(1500):
            nursery.start_soon(call, rng.choice(servers))
            await trio.sleep(rng.choice([0.0, 0.0, 0.001, 0.02, 0.3]))
    assert counts[True] > 100
    await trio.sleep(3 * INTERVAL)
    for server in servers:  # one after the other may have all
        assert await server.begin_several(limit) == limit
        server.end(limit)
        await trio.sleep(3 * INTERVAL)
