"""Keys that another process has told: the same decisions as where they were read, and none while others come in."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from protocol.access.categories import Category
from protocol.access.control import AccessControl
from protocol.access.key_table import key_table, ring_of
from protocol.access.keys import KeyRing
from protocol.access.told_keys import ToldKeys
from protocol.errors import ServerError, Unauthenticated

FILE = """
[keys.alice]
key = "alice-0123456789"
allow = ["inference"]
webhook_secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
[keys.bob]
key = "bob-0123456789ab"
allow = ["all"]
quota = "small"
weight = 2
[quotas.small]
requests = { limit = 1, seconds = 60 }
[anonymous]
allow = ["health"]
"""
RING = KeyRing.parse(FILE, source="keys.toml")
CALLERS = (None, "Bearer alice-0123456789", "Bearer bob-0123456789ab", "Bearer nobody-123456789", "Basic x")


def decision(ring: KeyRing, authorization: str | None, category: Category) -> str:
    try:
        return ring.check(authorization, category)
    except ServerError as error:
        return f"{type(error).__name__}: {error.message}"


@pytest.mark.parametrize("authorization", CALLERS)
@pytest.mark.parametrize("category", [Category.INFERENCE, Category.HEALTH, Category.METRICS])
def test_decisions(authorization: str | None, category: Category) -> None:
    told = ring_of(key_table(RING, 3))
    assert decision(told, authorization, category) == decision(RING, authorization, category)
    assert told.names == RING.names


def test_no_more_is_told_than_is_needed() -> None:
    told = ring_of(key_table(RING, 3))
    assert (told.webhook_secrets("alice"), len(RING.webhook_secrets("alice"))) == ((), 1)
    assert [terms.quota for terms in told.terms] == [None, None, None]
    assert [row.limits for row in key_table(RING, 3).rows] == [None, ("requests",), None]


async def test_others_come_in() -> None:
    number = 0
    keys = ToldKeys(lambda: number)
    access = AccessControl(keys=keys)
    alice = {"authorization": "Bearer alice-0123456789"}.get
    assert not keys.are_current
    with pytest.raises(Unauthenticated):
        access.check(Category.INFERENCE, alice)
    keys.take(key_table(RING, 0))
    assert keys.are_current
    assert (keys.ledger.limited.get("alice"), keys.ledger.limited["bob"]) == (None, {"requests"})
    account = access.check(Category.INFERENCE, alice)
    assert account is not None
    assert (account.name, account.quota) == ("alice", None)

    refusals: list[ServerError] = []

    async def watch() -> None:
        refusals.append(await access.until_refused(Category.INFERENCE, alice))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        number = 1  # she is taken out; it is not told yet
        assert not keys.are_current
        keys.take(key_table(KeyRing({}), 1))
    assert isinstance(refusals[0], Unauthenticated)
    keys.take(key_table(RING, 0))  # late
    with pytest.raises(Unauthenticated):
        access.check(Category.INFERENCE, alice)
