"""Keys of clients over a link: who is charged, and what is left of a key that was taken away."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import trio

from protocol.access.keys import KeyRing
from protocol.access.told_keys import ToldKeys
from protocol.core import InferenceCore
from protocol.errors import Unauthenticated
from protocol.messages import InferenceRequest, Tensor
from protocol.quotas.accounts import Account, Ledger
from protocol.quotas.quota import Unit
from tests.protocol.edge_link.links import linked
from tests.protocol.edge_link.scripted_core import ScriptedCore


def ring(*names: str) -> KeyRing:
    entries = [f'[keys.{name}]\nkey = "{name}-0123456789abc"\nallow = ["inference"]\n' for name in names]
    return KeyRing.parse("".join((*entries, "[anonymous]\nallow = []\n")), source="keys.toml")


class Keys:
    """Implements `KeySource`."""

    def __init__(self, *names: str) -> None:
        self.current = ring(*names)
        self.ledger = Ledger(trio.current_time)
        self.ledger.adopt(self.current.terms)
        self.changed = trio.Event()

    def replace(self, *names: str) -> None:
        self.current = ring(*names)
        self.ledger.adopt(self.current.terms)


def request(account: Account, *, id: str = "") -> InferenceRequest:
    made = InferenceRequest("m", [Tensor.from_numpy("IN", np.zeros(2, np.float32))], id=id)
    made.charge = account.admit(None, 8)
    return made


@pytest.mark.parametrize("id", ["", "mine"])
async def test_who_is_charged(id: str) -> None:
    """For plain records and others: compute time in the core, and all else in the edge."""
    core, keys = ScriptedCore(), Keys("alice", "bob")
    async with linked(cast(InferenceCore, core), keys=keys) as link:
        told = ToldKeys(lambda: link.core.keys_number)
        table = await link.core.key_table()
        assert table is not None
        told.take(table)
        assert told.are_current
        for name in ("alice", "bob", "alice"):
            await link.core.infer(request(told.ledger.account(name), id=id))
        charges = [each.request.charge for each in core.submitted]
        assert [charge and charge.account for charge in charges] == [
            keys.ledger.account(name) for name in ("alice", "bob", "alice")
        ]
        assert charges[0] is not None
        charges[0].settle(Unit.COMPUTE_SECONDS, 2.0)
        usage = keys.ledger.account("alice").usage
        assert (usage.compute_seconds, usage.requests, usage.bytes, usage.running) == (2.0, 0, 0, 0)
        link.generation.bump_keys()
        assert not told.are_current


@pytest.mark.parametrize("id", ["", "mine"])
async def test_a_key_that_was_taken_away_meanwhile(id: str) -> None:
    core, keys = ScriptedCore(), Keys("alice", "bob")
    async with linked(cast(InferenceCore, core), keys=keys) as link:
        told = ToldKeys(lambda: link.core.keys_number)
        told.ledger.adopt(keys.current.terms)
        alice, bob = map(told.ledger.account, ("alice", "bob"))
        keys.replace("bob")
        with pytest.raises(Unauthenticated):
            await link.core.infer(request(alice, id=id))
        assert (await link.core.infer(request(bob, id=id))).model_name == "m"
        with pytest.raises(Unauthenticated):
            await link.core.infer_stream(request(alice, id=id), None)  # type: ignore[arg-type]  # it is never called
        assert len(core.submitted) == 1
        assert link.server.in_flight == 0


async def test_a_server_without_keys() -> None:
    async with linked(cast(InferenceCore, ScriptedCore())) as link:
        assert await link.core.key_table() is None
