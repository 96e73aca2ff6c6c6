"""Calls of several inferences over a link: charged as one request, and for the same tokens as in one process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import cast

import pytest
import trio

from protocol.access.keys import KeyRing
from protocol.access.told_keys import ToldKeys
from protocol.core import InferenceCore, Respond
from protocol.edge_link import charges
from protocol.edge_link.charges import JointCharges
from protocol.edge_link.frames import BrokenFrame, Burst
from protocol.edge_link.received import Received
from protocol.edge_link.records import CHARGED, USED
from protocol.edge_link.texts import ChargedText, UsedText, encode_text
from protocol.errors import Cancelled, QuotaExceeded
from protocol.messages import InferenceRequest, InferenceResponse
from protocol.quotas.accounts import Account, Charge
from protocol.quotas.quota import Unit
from tests.protocol.edge_link.links import linked, settled
from tests.protocol.edge_link.scripted_core import ScriptedCore
from tests.protocol.edge_link.test_charges import Edge, Keys, edge

DAY = "seconds = 86400"
RING = KeyRing.parse(
    f"""
[quotas.all]
requests = {{ limit = 9, {DAY} }}
concurrent_requests = 2
bytes = {{ limit = 1000, {DAY} }}
tokens = {{ limit = 1000, {DAY} }}
[keys.limited]
key = "key-of-limited-0123456"
allow = ["inference"]
quota = "all"
[keys.free]
key = "key-of-free-0123456789"
allow = ["inference"]
[anonymous]
allow = []
""",
    source="keys.toml",
)


def request(charge: Charge) -> InferenceRequest:
    return InferenceRequest("m", [], charge=charge)


def left(account: Account) -> dict[Unit, float]:
    """Of each limit that the key has."""
    assert account.quota is not None
    return {limit.unit: round(account.meter(limit).remaining(trio.current_time())) for limit in account.quota.early}


async def pass_on(response: InferenceResponse) -> None:
    pass


class Counting:
    """An engine that takes tokens for each inference, if it `counts` any, and waits until it `may_end`."""

    def __init__(self, counts: bool) -> None:
        self.counts = counts
        self.may_end = trio.Event()

    async def stream(self, asked: InferenceRequest, respond: Respond) -> bool:
        charge = asked.charge
        assert charge is not None
        if self.counts:
            charge.take_more(Unit.TOKENS, 100)
            charge.is_counted = True
        try:
            await respond(InferenceResponse("m", 1, [], is_final=False))
            await self.may_end.wait()
        finally:
            if self.counts:
                charge.settle(Unit.TOKENS, 30, 100)
        return True


async def call(
    core: InferenceCore, account: Account, inferences: int, count: Callable[[], float] | None, settles: float = 0.0
) -> None:
    """As the OpenAI interface does it: one charge, whatever becomes of the call."""
    charge = account.admit("m", 50)
    charge.inferences = inferences
    charge.count_tokens = count
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(inferences):
                nursery.start_soon(core.infer_stream, request(charge), pass_on)
        if settles:
            charge.settle(Unit.TOKENS, settles)
        charge.settle(Unit.BYTES, 70)
    finally:
        charge.end()


class Case:
    """The same call with a link and without one."""

    def __init__(self, counts: bool, key: str, inferences: int, count: Callable[[], float] | None) -> None:
        self.counts = counts
        self.key = key
        self.inferences = inferences
        self.count = count

    async def run(self, core: InferenceCore, engine: Counting, account: Account, leaves: bool) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, core, account, self.inferences, self.count)
            await settled()
            if leaves:
                nursery.cancel_scope.cancel()
            engine.may_end.set()

    async def alone(self, leaves: bool) -> Account:
        keys, core, engine = Keys(RING), ScriptedCore(), Counting(self.counts)
        core.stream = engine.stream
        await self.run(cast(InferenceCore, core), engine, keys.ledger.account(self.key), leaves)
        return keys.ledger.account(self.key)

    async def by_link(self, leaves: bool) -> Account:
        keys, core, engine = Keys(RING), ScriptedCore(), Counting(self.counts)
        core.stream = engine.stream
        async with edge(core, keys) as one:
            await self.run(cast(InferenceCore, one.link.core), engine, one.account(self.key), leaves)
            await settled()
            assert (one.link.server.in_flight, len(one.link.server._requests.charges)) == (0, 0)
            assert one.account(self.key).usage.running == 0
        return keys.ledger.account(self.key)


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("inferences", [1, 4])
@pytest.mark.parametrize("counted", [None, 0.0, 12.5])
@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("key", ["limited", "free"])
async def test_a_call_costs_as_much_as_without_a_link(
    key: str, counts: bool, counted: float | None, inferences: int, leaves: bool
) -> None:
    case = Case(counts, key, inferences, None if counted is None else lambda: counted)
    alone, by_link = await case.alone(leaves), await case.by_link(leaves)
    expected = 30 * inferences if counts else counted or 0.0
    assert by_link.usage.tokens == alone.usage.tokens == expected
    if key == "limited":
        assert left(by_link) == left(alone)
        assert left(by_link)[Unit.REQUESTS] == 8
        assert left(by_link)[Unit.CONCURRENT_REQUESTS] == 2


async def test_one_after_another_is_one_request_too() -> None:
    core, keys = ScriptedCore(), Keys(RING)
    core.stream = at_once
    async with edge(core, keys) as one:
        charge = one.account("limited").admit("m", 50)
        charge.inferences = 4
        for _ in range(3):
            await one.link.core.infer_stream(request(charge), pass_on)
            assert left(keys.ledger.account("limited"))[Unit.CONCURRENT_REQUESTS] == 1, "its place is kept"
        charge.end()
        await settled()
        assert left(keys.ledger.account("limited")) == {
            Unit.REQUESTS: 8,
            Unit.CONCURRENT_REQUESTS: 2,
            Unit.BYTES: 950,
            Unit.TOKENS: 1000,
        }


@pytest.mark.parametrize(("planned", "is_cut"), [(1, False), (2, False), (1, True)])
async def test_its_place_is_free_before_its_client_knows_the_end(planned: int, is_cut: bool) -> None:
    """Which may send the next request to another edge at once. Fewer may run than were planned, or be given up."""
    core, keys = ScriptedCore(), Keys(RING)
    core.stream = waits if is_cut else at_once
    async with edge(core, keys) as one, edge(core, keys) as other:
        for _ in range(4):
            running = [each.account("limited").admit("m", 10) for each in (one, other)]
            for each, charge in zip((one, other), running, strict=True):
                charge.inferences = planned
                charge.count_tokens = lambda: 10.0
                if is_cut:
                    with trio.move_on_after(0.01):
                        await each.link.core.infer_stream(request(charge), pass_on)
                else:
                    await each.link.core.infer_stream(request(charge), pass_on)
                    assert (left(keys.ledger.account("limited"))[Unit.CONCURRENT_REQUESTS] == 2) is (planned == 1)
                charge.end_inferences()
                charge.end_inferences()
                await trio.lowlevel.checkpoint()  # one turn of the loop: what was sent is read
                assert left(keys.ledger.account("limited"))[Unit.CONCURRENT_REQUESTS] == 2
            for charge in running:
                charge.settle(Unit.BYTES, 5)
                charge.end()
        await settled()
        assert keys.ledger.account("limited").usage.tokens == 80
        assert len(one.link.server._requests.charges) == len(other.link.server._requests.charges) == 0


async def test_what_an_edge_tells_last_is_heard() -> None:
    core, keys = ScriptedCore(), Keys(RING)
    core.stream = at_once
    async with edge(core, keys) as one:
        charge = one.account("limited").admit("m", 10)
        charge.inferences = 1
        charge.count_tokens = lambda: 11.0
        await one.link.core.infer_stream(request(charge), pass_on)
        one.link.edge_scope.cancel()
        charge.end()
        await settled()
        assert keys.ledger.account("limited").usage.tokens == 11


async def test_a_refused_call_knows_its_limits() -> None:
    core, keys = ScriptedCore(), Keys(RING)
    async with edge(core, keys) as one:
        keys.ledger.account("limited").admit("m", 995)
        charge = one.account("limited").admit("m", 50)
        charge.inferences = 1
        with pytest.raises(QuotaExceeded):
            await one.link.core.infer_stream(request(charge), pass_on)
        shown = {limit.unit: round(meter.remaining(charge.account.now())) for limit, meter in charge.held}
        assert shown == left(keys.ledger.account("limited"))


async def waits(asked: InferenceRequest, respond: Respond) -> bool:
    await trio.sleep_forever()
    raise AssertionError


async def test_one_more_than_was_planned_has_a_place() -> None:
    core, keys = ScriptedCore(), Keys(RING)
    engine = Counting(counts=False)
    core.stream = at_once
    async with edge(core, keys) as one, trio.open_nursery() as nursery:
        charge = one.account("limited").admit("m", 50)
        charge.inferences = 1
        await one.link.core.infer_stream(request(charge), pass_on)
        for _ in range(2):
            core.stream, engine.may_end = engine.stream, trio.Event()
            nursery.start_soon(one.link.core.infer_stream, request(charge), pass_on)
            await settled()
            assert left(keys.ledger.account("limited"))[Unit.CONCURRENT_REQUESTS] == 1
            engine.may_end.set()
            await settled()
            assert left(keys.ledger.account("limited"))[Unit.CONCURRENT_REQUESTS] == 2
        charge.end()
        await settled()
        assert left(keys.ledger.account("limited"))[Unit.CONCURRENT_REQUESTS] == 2
        assert left(keys.ledger.account("limited"))[Unit.REQUESTS] == 8


async def at_once(asked: InferenceRequest, respond: Respond) -> bool:
    return True


async def test_tokens_that_are_known_when_it_has_ended() -> None:
    """Those of embeddings, whoever counts."""
    core, keys = ScriptedCore(), Keys(RING)
    core.stream = at_once
    async with edge(core, keys) as one:
        await call(cast(InferenceCore, one.link.core), one.account("limited"), 2, None, settles=40)
        await call(cast(InferenceCore, one.link.core), one.account("free"), 2, None, settles=7)
        await settled()
        assert left(keys.ledger.account("limited"))[Unit.TOKENS] == 960
        assert keys.ledger.account("free").usage.tokens == 7


@pytest.mark.parametrize("key", ["limited", "free"])
async def test_a_call_that_never_comes_to_the_core(key: str) -> None:
    core, keys = ScriptedCore(), Keys(RING)
    async with edge(core, keys) as one:
        charge = one.account(key).admit("m", 50)
        charge.inferences = 1
        charge.count_tokens = lambda: 11.0
        charge.end()
        charge.end()
        await settled()
        assert keys.ledger.account(key).usage.tokens == 11
        if key == "limited":
            assert left(keys.ledger.account(key)) == {
                Unit.REQUESTS: 8,
                Unit.CONCURRENT_REQUESTS: 2,
                Unit.BYTES: 950,
                Unit.TOKENS: 989,
            }


async def test_a_call_is_refused_once() -> None:
    core, keys = ScriptedCore(), Keys(RING)
    engine = Counting(counts=False)
    core.stream = engine.stream
    async with edge(core, keys) as one, trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(call, one.link.core, one.account("limited"), 2, None)
        await settled()
        charge = one.account("limited").admit("m", 50)
        charge.inferences = 1
        for _ in range(3):
            with pytest.raises(QuotaExceeded) as caught:
                await one.link.core.infer_stream(request(charge), pass_on)
            assert caught.value.limit == "concurrent_requests"
        assert keys.ledger.account("limited").usage.refusals["concurrent_requests"] == 1
        engine.may_end.set()
        await settled()
        with pytest.raises(QuotaExceeded):  # also when there is room: the others were not admitted
            await one.link.core.infer_stream(request(charge), pass_on)
        charge.end()
        await settled()
        assert len(one.link.server._requests.charges) == 0
        assert left(keys.ledger.account("limited"))[Unit.REQUESTS] == 7


async def test_places_of_an_edge_that_is_killed_are_free() -> None:
    core, keys = ScriptedCore(), Keys(RING)
    engine = Counting(counts=False)
    core.stream = engine.stream
    async with edge(core, keys) as one, trio.open_nursery() as nursery:
        nursery.start_soon(swallowed, one)
        await settled()
        assert left(keys.ledger.account("limited"))[Unit.CONCURRENT_REQUESTS] == 1
        one.link.edge_scope.cancel()
        await settled()
        assert left(keys.ledger.account("limited"))[Unit.CONCURRENT_REQUESTS] == 2
        nursery.cancel_scope.cancel()


async def swallowed(one: Edge) -> None:
    with suppress(BaseExceptionGroup):
        await call(cast(InferenceCore, one.link.core), one.account("limited"), 2, None)


def frame(kind: int, *numbers: int, text: object) -> bytes:
    burst = Burst()
    burst.numbers += kind, *numbers, burst.add_text(encode_text(text))
    return b"".join(burst.take())


WRONG = {
    "tokens below nothing": frame(CHARGED, 1, text=ChargedText(-1.0, None)),
    "no number of tokens": frame(CHARGED, 1, text=ChargedText(0.0, float("nan"))),
    "tokens without end": frame(CHARGED, 1, text=ChargedText(float("inf"), None)),
    "use without end": frame(USED, text=UsedText("limited", "m", 0, 0.0, float("inf"))),
    "bytes that are no number": frame(USED, text=UsedText("limited", "m", 0, float("nan"), 0.0)),
    "more requests than there are": frame(USED, text=UsedText("limited", "m", 1 << 40, 0.0, 0.0)),
}


@pytest.mark.parametrize("name", WRONG)
async def test_an_edge_that_tells_what_cannot_be(name: str) -> None:
    core, keys = ScriptedCore(), Keys(RING)
    async with linked(cast(InferenceCore, core), keys=keys) as link:
        link.core._wire.socket.send(WRONG[name])
        await settled()
        assert link.server.problem
        link.server._wire.problem = ""
    assert left(keys.ledger.account("limited"))[Unit.TOKENS] == 1000


async def test_the_end_of_what_is_not_there_is_no_harm() -> None:
    """Its key may have been gone when it came."""
    core, keys = ScriptedCore(), Keys(RING)
    async with linked(cast(InferenceCore, core), keys=keys) as link:
        link.core._wire.socket.send(frame(CHARGED, 77, text=ChargedText(5.0, None)))
        await settled()
    assert left(keys.ledger.account("limited"))[Unit.TOKENS] == 1000


async def test_charges_whose_end_is_not_told_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charges, "_MOST_JOINT", 3)
    keys, open_ones = Keys(RING), JointCharges()
    account, other = keys.ledger.account("limited"), keys.ledger.account("free")
    first = [open_ones.of(received(number), account) for number in (1, 2, 3)]
    assert open_ones.of(received(2), account) is first[1]
    with pytest.raises(BrokenFrame, match="whose end it has not told"):
        open_ones.of(received(4), account)
    with pytest.raises(BrokenFrame, match="and before to 'limited'"):
        open_ones.of(received(2), other)


def received(charge: int) -> Received:
    return Received(1, 0, InferenceRequest("m", []), "", 0.0, charge, 1, None)


async def test_what_comes_behind_the_end_takes_no_place() -> None:
    """As a request may that has waited for its places to be known."""
    keys, open_ones = Keys(RING), JointCharges()
    account = keys.ledger.account("limited")
    first, late = open_ones.of(received(1), account), open_ones.of(received(1), account)
    first.admit("m", 8)
    open_ones.end(1, memoryview(encode_text(ChargedText(0.0, None))))
    with pytest.raises(Cancelled):
        late.admit("m", 8)
    assert left(account)[Unit.CONCURRENT_REQUESTS] == 2
    assert left(account)[Unit.REQUESTS] == 8


def test_keys_without_a_desk_are_charged_here() -> None:
    told = ToldKeys(lambda: 0)
    assert type(told.ledger.account("anonymous").admit("m", 8)) is Charge
