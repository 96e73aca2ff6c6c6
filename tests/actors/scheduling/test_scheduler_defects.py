"""Each request that a scheduler has taken is answered once, whatever raises while it is given out or ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors.mail.messages import (
    BatchDone,
    Execute,
    InstanceAddress,
    InstanceGone,
    InstanceReady,
    SchedulerAddress,
    Submit,
)
from actors.mail.reply_slot import Reply
from actors.metrics.statistics import VersionStatistics
from actors.scheduling.batching.policy import DirectPolicy
from actors.scheduling.ordered_replies import OrderedReplies
from actors.scheduling.scheduler import Scheduler
from protocol.errors import ServerError
from protocol.messages import InferenceResponse
from tests.actors.fakes import TIMING, Caller


class Injected(Exception):
    """What is raised on purpose."""


class Given:
    """The inbox of an instance that runs nothing by itself; where it is `broken` it takes a batch, and raises."""

    def __init__(self, name: str) -> None:
        self.batches: list[Execute] = []
        self.is_broken = False
        self.is_closed = False
        self.address = InstanceAddress(name, self)

    def send_nowait(self, message: Execute) -> None:
        if self.is_closed:
            raise trio.BrokenResourceError
        self.batches.append(message)
        if self.is_broken:
            raise Injected

    def close(self) -> None:
        self.is_closed = True

    def done(self, number: int = -1, *, is_alive: bool = True) -> BatchDone:
        given = self.batches[number]
        replies: list[Reply] = [InferenceResponse("m", 1, []) for _ in given.batch]
        return BatchDone(self.address, given, given.batch, replies, 0.0, TIMING, is_alive=is_alive)


def scheduler(*, is_ordered: bool = False, runs_ahead: bool = False) -> Scheduler:
    ordered = OrderedReplies() if is_ordered else None
    return Scheduler("m", DirectPolicy(), VersionStatistics(), ordered, runs_ahead=runs_ahead)


def once(patch: pytest.MonkeyPatch, name: str, *, is_behind: bool) -> None:
    """Have a function of the scheduler raise the next time, before or behind what it does."""
    real: Callable[..., object] = getattr(Scheduler, name)

    def faulty(*arguments: object) -> object:
        patch.setattr(Scheduler, name, real)
        if is_behind:
            real(*arguments)
        raise Injected

    patch.setattr(Scheduler, name, faulty)


async def start(nursery: trio.Nursery, actor: Scheduler, *instances: Given) -> SchedulerAddress:
    address: SchedulerAddress = await nursery.start(actor.run)
    for instance in instances:
        address.send_nowait(InstanceReady(instance.address))
    return address


async def ask(address: SchedulerAddress) -> Caller:
    caller = Caller()
    address.send_nowait(Submit(caller.item))
    await wait_all_tasks_blocked()
    return caller


async def test_a_batch_that_could_not_be_given_is_answered_in_its_turn(nursery: trio.Nursery) -> None:
    good, broken = Given("good"), Given("broken")
    broken.is_broken = True
    actor = scheduler(is_ordered=True)
    address = await start(nursery, actor, good, broken)
    first, second = await ask(address), await ask(address)
    assert broken.batches
    assert broken.is_closed
    assert second.answer() is None  # it is not its turn
    address.send_nowait(good.done())
    assert isinstance(first.answer(), InferenceResponse)
    assert isinstance(second.answer(), ServerError)


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_what_a_given_up_instance_reports_is_not_heard(is_ordered: bool, nursery: trio.Nursery) -> None:
    good, broken = Given("good"), Given("broken")
    broken.is_broken = True
    actor = scheduler(is_ordered=is_ordered)
    address = await start(nursery, actor, broken)
    first = await ask(address)
    assert isinstance(first.answer(), ServerError)
    address.send_nowait(broken.done())
    assert first.answer() is None
    address.send_nowait(InstanceReady(good.address))
    second = await ask(address)  # nothing is given to the one that has gone
    address.send_nowait(good.done())
    assert isinstance(second.answer(), InferenceResponse)
    assert actor.failures.counts() == {"scheduler": 1}


async def test_an_instance_whose_batch_was_given_before_the_defect_gets_no_second_one(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = Given("m_0")
    address = await start(nursery, scheduler(), instance)
    once(monkeypatch, "_hand_over", is_behind=True)
    first, second = await ask(address), await ask(address)
    assert len(instance.batches) == 1
    address.send_nowait(instance.done(is_alive=False))
    address.send_nowait(InstanceGone(instance.address))
    assert isinstance(first.answer(), InferenceResponse)
    assert isinstance(second.answer(), ServerError)


@pytest.mark.parametrize("is_behind", [False, True])
async def test_the_end_of_a_batch_that_is_not_noted_costs_the_next_one_no_answer(
    is_behind: bool, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = Given("m_0")
    address = await start(nursery, scheduler(runs_ahead=True), instance)
    first, second = await ask(address), await ask(address)
    assert len(instance.batches) == 2
    once(monkeypatch, "_finish", is_behind=is_behind)
    address.send_nowait(instance.done(0))
    assert isinstance(first.answer(), ServerError)
    assert isinstance(second.answer(), ServerError)
    address.send_nowait(instance.done(1))
    address.send_nowait(InstanceGone(instance.address))
    assert (first.answer(), second.answer()) == (None, None)


@pytest.mark.parametrize("is_behind", [False, True])
async def test_the_end_of_an_instance_that_is_not_noted_leaves_nobody_waiting(
    is_behind: bool, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = Given("m_0")
    address = await start(nursery, scheduler(), instance)
    caller = await ask(address)
    once(monkeypatch, "_lose", is_behind=is_behind)
    address.send_nowait(InstanceGone(instance.address))
    assert isinstance(caller.answer(), ServerError)
    assert caller.answer() is None
