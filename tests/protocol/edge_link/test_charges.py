"""Quotas over a link: one account for all edges, whose refusals cross, and what is left of it; nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import numpy as np
import pytest
import trio

from protocol.access.keys import KeyRing
from protocol.access.told_keys import ToldKeys
from protocol.core import InferenceCore, Respond
from protocol.errors import QuotaExceeded, Unauthenticated
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from protocol.quotas.accounts import Account, Charge, Ledger
from protocol.quotas.leases import Grant
from protocol.quotas.quota import Limit, Unit
from protocol.quotas.shared import SharedMeters
from protocol.quotas.told import ToldCharge
from tests.protocol.edge_link.links import Link, linked, settled
from tests.protocol.edge_link.scripted_core import ScriptedCore

DAY = "seconds = 86400"
QUOTAS = f"""
[quotas.three]
requests = {{ limit = 3, {DAY} }}
[quotas.one]
concurrent_requests = 1
[quotas.bytes]
bytes = {{ limit = 1000, {DAY} }}
[quotas.by-model]
requests = {{ limit = 9, {DAY} }}
[quotas.by-model.models.m]
requests = {{ limit = 1, {DAY} }}
[quotas.all]
requests = {{ limit = 3, {DAY} }}
concurrent_requests = 4
bytes = {{ limit = 1000, {DAY} }}
"""
NAMES = ("three", "one", "bytes", "by-model", "all")


def ring(*limited: str, free: tuple[str, ...] = ()) -> KeyRing:
    entries = [f'[keys.{name}]\nkey = "key-of-{name}-01234567"\nallow = ["inference"]\n' for name in (*limited, *free)]
    for at, name in enumerate(limited):
        entries[at] += f'quota = "{name}"\n'
    return KeyRing.parse("".join((QUOTAS, *entries, "[anonymous]\nallow = []\n")), source="keys.toml")


class Keys:
    """Implements `KeySource`."""

    def __init__(self, current: KeyRing) -> None:
        self.ledger = Ledger(trio.current_time)
        self.changed = trio.Event()
        self.replace(current)

    def replace(self, current: KeyRing) -> None:
        self.current = current
        self.ledger.adopt(self.current.terms)


class Edge:
    """One edge's link, and the keys as it was told them."""

    def __init__(self, link: Link, told: ToldKeys) -> None:
        self.link = link
        self.told = told

    def account(self, name: str) -> Account:
        return self.told.ledger.account(name)

    async def infer(self, name: str, size: int = 8, model: str = "m") -> Charge:
        """One request of so many bytes, answered; its charge goes on."""
        charge = self.account(name).admit(model, size)
        await self.link.core.infer(request(charge, model))
        return charge

    async def refused(self, name: str, size: int = 8, model: str = "m") -> QuotaExceeded:
        charge = self.account(name).admit(model, size)
        with pytest.raises(QuotaExceeded) as caught:
            await self.link.core.infer(request(charge, model))
        charge.end()
        return caught.value


def request(charge: Charge, model: str = "m") -> InferenceRequest:
    made = InferenceRequest(model, [Tensor.from_numpy("IN", np.zeros(2, np.float32))])
    made.charge = charge
    return made


@asynccontextmanager
async def edge(core: ScriptedCore, keys: Keys) -> AsyncIterator[Edge]:
    async with linked(cast(InferenceCore, core), keys=keys) as link:
        told = ToldKeys(lambda: link.core.keys_number, link.core)
        table = await link.core.key_table()
        assert table is not None
        told.take(table)
        yield Edge(link, told)


async def test_one_account_for_all_edges() -> None:
    core, keys = ScriptedCore(), Keys(ring(*NAMES))
    async with edge(core, keys) as one, edge(core, keys) as other:
        for each in (one, other, one):
            (await each.infer("three")).end()
        refusals = [await each.refused("three") for each in (other, one)]
        assert len(core.submitted) == 3
        with pytest.raises(QuotaExceeded) as alone:
            keys.ledger.account("three").admit("m", 8)
        for refusal in refusals:
            assert str(refusal) == str(alone.value)
            assert refusal.limit == "requests"
            assert refusal.retry_after == pytest.approx(28800, rel=0.01)
            assert refusal.fields == alone.value.fields
        usage = one.account("three").usage
        assert (usage.requests, usage.running, usage.bytes) == (2, 0, 16)
        assert keys.ledger.account("three").usage.refusals["requests"] == 3
        assert (await one.infer("one")).fields()  # others are not in the way


async def test_a_models_own_limit() -> None:
    core, keys = ScriptedCore(), Keys(ring(*NAMES))
    async with edge(core, keys) as one:
        (await one.infer("by-model")).end()
        assert "to model 'm'" in str(await one.refused("by-model"))
        (await one.infer("by-model", model="other")).end()


@pytest.mark.parametrize("size", [8, 300])
async def test_what_is_left_is_said_as_without_a_link(size: int) -> None:
    core, keys, alone = ScriptedCore(), Keys(ring(*NAMES)), Keys(ring(*NAMES))
    async with edge(core, keys) as one:
        for _ in range(3):
            there, here = await one.infer("all", size), alone.ledger.account("all").admit("m", size)
            for charge in (there, here):
                charge.settle(Unit.BYTES, 20)
            assert there.fields() == here.fields()
            assert '"concurrent_requests";r=3' in there.fields()[1][1]
            there.end()
            here.end()
            await settled()
        assert (await one.refused("all")).limit == "requests"


async def test_bytes_of_answers_are_owed() -> None:
    core, keys = ScriptedCore(), Keys(ring(*NAMES))
    async with edge(core, keys) as one:
        charge = await one.infer("bytes", 100)
        charge.settle(Unit.BYTES, 850)
        charge.end()
        charge.end()
        await settled()
        (await one.infer("bytes", 50)).end()
        assert (await one.refused("bytes", 1)).limit == "bytes"


async def test_places_are_free_once_a_request_is_answered() -> None:
    """Whatever its client makes of the answer: a place is never taken by what the core does not run."""
    core, keys = ScriptedCore(), Keys(ring(*NAMES))
    async with edge(core, keys) as one, edge(core, keys) as other:
        core.holds = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.infer, "one")
            await settled()
            assert (await other.refused("one")).limit == "concurrent_requests"
            core.submitted[0].echo()
        core.holds = False
        await other.infer("one")
        await one.infer("one")


@pytest.mark.parametrize("is_stream", [False, True])
async def test_places_of_an_edge_that_is_gone_are_free(is_stream: bool) -> None:
    core, keys = ScriptedCore(), Keys(ring(*NAMES))
    core.stream = never
    async with edge(core, keys) as other, edge(core, keys) as one, trio.open_nursery() as nursery:
        core.holds = True
        held = request(one.account("one").admit("m", 8))
        if is_stream:
            nursery.start_soon(swallow, one.link.core.infer_stream, held, never_told)
        else:
            nursery.start_soon(swallow, one.link.core.infer, held)
        await settled()
        assert (await other.refused("one")).limit == "concurrent_requests"
        one.link.edge_scope.cancel()
        await settled()
        core.holds = False
        await other.infer("one")
        nursery.cancel_scope.cancel()


async def never(_: InferenceRequest, respond: Respond) -> bool:
    await trio.sleep_forever()


async def never_told(_: InferenceResponse) -> None:
    raise AssertionError


async def swallow(call: object, *args: object) -> None:
    try:
        await call(*args)  # type: ignore[operator]
    except Exception:
        return


async def test_a_client_that_leaves_gives_its_place_back() -> None:
    core, keys = ScriptedCore(), Keys(ring(*NAMES))
    async with edge(core, keys) as one:
        core.holds = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.infer, "one")
            await settled()
            nursery.cancel_scope.cancel()
        await settled()
        core.holds = False
        await one.infer("one")


async def test_a_refusal_for_a_client_that_has_left() -> None:
    core, keys = ScriptedCore(), Keys(ring(*NAMES))
    async with edge(core, keys) as one:
        for _ in range(3):
            (await one.infer("three")).end()
        charge = one.account("three").admit("m", 8)
        with trio.CancelScope() as scope:
            scope.cancel()
            await one.link.core.infer(request(charge))
        charge.end()
        await settled()
        assert (one.link.server.in_flight, one.account("three").usage.running) == (0, 0)
        assert (await one.refused("three")).limit == "requests"


async def test_a_stream_is_refused_before_its_first_response() -> None:
    core, keys = ScriptedCore(), Keys(ring(*NAMES))
    told: list[str] = []

    async def stream(asked: InferenceRequest, respond: Respond) -> bool:
        for _ in range(2):
            await respond(InferenceResponse(asked.model_name, 1, asked.inputs))
        return False

    core.stream = stream
    async with edge(core, keys) as one:
        for left in (2, 1, 0):
            charge = one.account("three").admit("m", 8)

            async def respond(response: InferenceResponse, charge: Charge = charge) -> None:
                told.append(charge.fields()[1][1])

            await one.link.core.infer_stream(request(charge), respond)
            charge.end()
            assert all(f"r={left};" in each for each in told)
            told.clear()
        with pytest.raises(QuotaExceeded):
            await one.link.core.infer_stream(request(one.account("three").admit("m", 8)), never_told)
        assert (core.streams, one.link.server.in_flight) == (0, 0)


async def test_a_quota_that_has_come_holds_at_once() -> None:
    """The edge has let a request in by the keys before: it does not know that there is a quota."""
    core, keys = ScriptedCore(), Keys(ring(free=NAMES))
    async with edge(core, keys) as one:
        for _ in range(5):
            (await one.infer("three")).end()
        keys.replace(ring(*NAMES))
        for _ in range(3):
            (await one.infer("three")).end()
        assert (await one.refused("three")).limit == "requests"
        keys.replace(ring("one"))
        with pytest.raises(Unauthenticated):
            await one.infer("three")


async def test_what_an_edge_refuses_by_itself_costs_a_request() -> None:
    core, keys = ScriptedCore(), Keys(ring(*NAMES))
    async with edge(core, keys) as one:
        one.account("three").admit("m", 8).end()
        await settled()
        for left in (1, 0):
            charge = one.account("three").admit("m", 8)
            assert isinstance(charge, ToldCharge)
            await charge.admit_unsent()
            charge.end()
            assert keys.ledger.account("three").meter(keys_limit(keys)).remaining(trio.current_time()) == left
        charge = one.account("three").admit("m", 8)
        assert isinstance(charge, ToldCharge)
        with pytest.raises(QuotaExceeded):
            await charge.admit_unsent()
        charge.end()
        for _ in range(50):  # which owe nothing
            one.account("three").admit("m", 8).end()
        await settled()
        assert (await one.refused("three")).retry_after == pytest.approx(28800, rel=0.01)
        assert core.submitted == []


def keys_limit(keys: Keys) -> Limit:
    quota = keys.ledger.account("three").quota
    limit = None if quota is None else quota.limit(Unit.REQUESTS, "")
    assert limit is not None
    return limit


async def test_a_request_that_is_withdrawn_costs_nothing() -> None:
    core, keys = ScriptedCore(), Keys(ring(*NAMES))
    async with edge(core, keys) as one:
        charge = one.account("three").admit("m", 8)
        charge.withdraw(8)
        charge.end()
        await settled()
        assert keys.ledger.account("three").admit("m", 8).fields()[1][1].startswith('"requests";r=2')


async def test_what_was_refused_is_not_read_first_again() -> None:
    core, keys = ScriptedCore(), Keys(ring(*NAMES))
    async with edge(core, keys) as one:
        headers = {"authorization": "Bearer key-of-three-01234567"}.get
        for _ in range(3):
            (await one.infer("three")).end()
        assert not one.told.may_be_refused(headers, 1 << 20)
        await one.refused("three")
        assert [one.told.may_be_refused(headers, size) for size in (1 << 20, 100)] == [True, False]


async def test_places_that_other_servers_have_a_part_of() -> None:
    """Nobody waits in the edge's loop, or in the core's; and who leaves meanwhile is not run."""
    core, keys = ScriptedCore(), Keys(ring(*NAMES))
    keys.ledger.shared = meters = SharedMeters()
    async with edge(core, keys) as one:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.infer, "one")
            with trio.move_on_after(0.01):
                await one.infer("one")
            await settled()
            assert (core.submitted, one.link.server.in_flight) == ([], 1)
            now = trio.current_time()
            claims = meters.leases.collect(now, is_regular=True)
            meters.leases.adopt(claims, [Grant(1, 0, 0, is_wanted_elsewhere=False) for _ in claims], now)
        assert len(core.submitted) == 1


async def test_places_that_others_have_and_do_not_use_are_waited_for_once() -> None:
    """As without a link: who has waited for as long as the leases say is refused."""
    core, keys = ScriptedCore(), Keys(ring(*NAMES))
    keys.ledger.shared = meters = SharedMeters()
    meters.leases.patience_seconds = 0.0
    async with edge(core, keys) as one, trio.open_nursery() as nursery:
        nursery.start_soon(one.refused, "one")
        await settled()
        grant(meters, Grant(0, 1, 0, is_wanted_elsewhere=False))
        await settled()
        assert one.link.server.in_flight == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_stream", [False, True])
async def test_who_leaves_as_a_place_comes_is_not_run(is_stream: bool) -> None:
    """A stream would wait for its client's credit for ever, and keep the place."""
    core, keys = ScriptedCore(), Keys(ring(*NAMES))
    keys.ledger.shared = meters = SharedMeters()
    async with edge(core, keys) as one, trio.open_nursery() as nursery:
        made = request(one.account("one").admit("m", 8))
        if is_stream:
            nursery.start_soon(one.link.core.infer_stream, made, nobody)
        else:
            nursery.start_soon(one.link.core.infer, made)
        await settled()
        grant(meters, Grant(1, 0, 0, is_wanted_elsewhere=False))
        for scope in one.link.server._calls.scopes.values():  # as its client's leaving is read in the same turn
            scope.cancel()
        await settled()
        assert (core.submitted, one.link.server.in_flight) == ([], 0)
        nursery.cancel_scope.cancel()


async def nobody(response: InferenceResponse) -> None:
    raise AssertionError("nothing was to be answered")


def grant(meters: SharedMeters, granted: Grant) -> None:
    """The store's answer for all that is in use."""
    now = trio.current_time()
    claims = meters.leases.collect(now, is_regular=True)
    meters.leases.adopt(claims, [granted for _ in claims], now)
