"""The scheduler with real instances and a fake backend, under virtual time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.instance.instance import ModelInstance
from actors.mail.messages import (
    Abandon,
    BatchDone,
    Drain,
    Execute,
    InstanceAddress,
    InstanceReady,
    QueuedRequest,
    SchedulerAddress,
    StoppedAccepting,
    Submit,
)
from actors.mail.reply_slot import Reply, ReplySlot
from actors.metrics.statistics import FailureReason, VersionStatistics
from actors.scheduling.batching.dynamic import DynamicBatchingPolicy
from actors.scheduling.ordered_replies import OrderedReplies
from actors.scheduling.scheduler import Scheduler
from protocol.errors import Unavailable
from protocol.messages import InferenceResponse
from repository.model_config import ModelDynamicBatching, ModelQueuePolicy
from tests.actors.fakes import TIMING, Caller, FakeBackend, fake_backend, request, spec


def scheduler(*, delay_us: int = 0, max_queue_size: int = 0, is_ordered: bool = False) -> Scheduler:
    config = ModelDynamicBatching(
        max_queue_delay_microseconds=delay_us, default_queue_policy=ModelQueuePolicy(max_queue_size=max_queue_size)
    )
    policy = DynamicBatchingPolicy(config, max_batch_size=4)
    return Scheduler("m", policy, VersionStatistics(), OrderedReplies() if is_ordered else None)


async def start(
    nursery: trio.Nursery, actor: Scheduler, backend: type[FakeBackend], *, instances: int = 1
) -> SchedulerAddress:
    address: SchedulerAddress = await nursery.start(actor.run)
    for number in range(instances):
        name = f"m_{number}"
        await nursery.start(ModelInstance(name, backend(spec(name=name)), address).run)
    return address


async def test_a_burst_that_finds_the_instance_idle_becomes_one_batch(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    backend = fake_backend(seconds=1)
    actor = scheduler()
    address = await start(nursery, actor, backend)
    callers = [Caller(id=str(n)) for n in range(6)]
    for caller in callers:
        address.send_nowait(Submit(caller.item))
    await trio.sleep(1.5)
    assert backend.batches == [["0", "1", "2", "3"], ["4", "5"]]
    assert [isinstance(c.answer(), InferenceResponse) for c in callers] == [True] * 4 + [False] * 2
    assert actor.pending_count == 0
    await trio.sleep(1)
    assert all(isinstance(c.answer(), InferenceResponse) for c in callers[4:])


async def test_without_a_delay_an_idle_instance_never_waits(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    backend = fake_backend(seconds=1)
    address = await start(nursery, scheduler(), backend, instances=2)
    for n in range(2):
        address.send_nowait(Submit(Caller(id=str(n)).item))
        await wait_all_tasks_blocked()
    assert backend.batches == [["0"], ["1"]]
    address.send_nowait(Drain())


class Watching(ReplySlot):
    """A reply slot whose caller looks around in the moment of the answer, and asks again."""

    def __init__(self, on_answer: Callable[[], None]) -> None:
        super().__init__()
        self._on_answer = on_answer

    def send_nowait(self, reply: Reply) -> None:
        super().send_nowait(reply)
        self._on_answer()


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_the_instance_has_its_next_batch_before_callers_are_answered(
    nursery: trio.Nursery, *, is_ordered: bool
) -> None:
    actor = scheduler(is_ordered=is_ordered)
    address: SchedulerAddress = await nursery.start(actor.run)
    to_instance, given = trio.open_memory_channel[Execute](2)
    instance = InstanceAddress("m_0", to_instance)
    address.send_nowait(InstanceReady(instance))
    seen: list[int] = []
    again = Caller(1, id="again")

    def on_answer() -> None:
        seen.append(given.statistics().current_buffer_used)
        address.send_nowait(Submit(again.item))

    first = QueuedRequest(request(4, id="first"), 4, None, trio.current_time(), Watching(on_answer))
    address.send_nowait(Submit(first))
    address.send_nowait(Submit(Caller(4, id="second").item))
    running = await given.receive()
    answer = InferenceResponse("m", 1, [])
    address.send_nowait(BatchDone(instance, running, running.batch, [answer], 0.0, TIMING))
    assert seen == [1]
    assert actor.statistics.inference_count == 4, "as soon as anybody else can look"
    assert [item.request.id for item in (await given.receive()).batch] == ["second"]
    assert actor.pending_count == 1
    nursery.cancel_scope.cancel()


async def test_with_a_delay_a_batch_waits_for_company_and_no_longer(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    backend = fake_backend()
    address = await start(nursery, scheduler(delay_us=1_000_000), backend)
    address.send_nowait(Submit(Caller(id="a", arrival=trio.current_time()).item))
    await trio.sleep(0.9)
    assert backend.batches == []
    address.send_nowait(Submit(Caller(id="b", arrival=trio.current_time()).item))
    await trio.sleep(0.2)
    assert backend.batches == [["a", "b"]]
    address.send_nowait(Drain())


async def test_a_full_queue_is_answered_at_once(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    actor = scheduler(max_queue_size=1)
    address = await start(nursery, actor, fake_backend(seconds=1))
    running, queued, refused = Caller(4), Caller(), Caller(id="r3")
    for caller in (running, queued, refused):
        address.send_nowait(Submit(caller.item))
        await wait_all_tasks_blocked()
    answer = refused.answer()
    assert isinstance(answer, Unavailable)
    assert answer.message == "[request id: r3] Exceeds maximum queue size"
    assert actor.statistics.failures[FailureReason.REJECTED] == 1
    address.send_nowait(Drain())


async def test_draining_finishes_what_is_queued_refuses_what_comes_and_unloads(autojump_clock: MockClock) -> None:
    backend = fake_backend(seconds=1)
    async with trio.open_nursery() as nursery:
        address = await start(nursery, scheduler(delay_us=500_000), backend)
        queued, late = Caller(arrival=trio.current_time()), Caller()
        address.send_nowait(Submit(queued.item))
        address.send_nowait(Drain())
        with pytest.raises(StoppedAccepting):
            address.send_nowait(Submit(late.item))
        with pytest.raises(StoppedAccepting):
            address.submit(late.item)
    assert isinstance(queued.answer(), InferenceResponse)
    assert [made.is_loaded for made in backend.made] == [False]
    with pytest.raises(Unavailable, match="has stopped accepting"):
        address.send_nowait(Drain())


async def test_stopped_now_it_fails_the_running_and_the_queued(autojump_clock: MockClock) -> None:
    running, queued, unseen = Caller(4), Caller(), Caller()
    async with trio.open_nursery() as nursery:
        address = await start(nursery, scheduler(), fake_backend(seconds=10))
        address.send_nowait(Submit(running.item))
        address.send_nowait(Submit(queued.item))
        await wait_all_tasks_blocked()
        address.send_nowait(Submit(unseen.item))
        nursery.cancel_scope.cancel()
    for caller in (running, queued, unseen):
        assert isinstance(caller.answer(), Unavailable)


async def test_an_abandoned_request_is_dropped_and_counted(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    backend = fake_backend(seconds=1)
    actor = scheduler()
    address = await start(nursery, actor, backend)
    running, gone = Caller(4, id="running"), Caller(id="gone")
    address.send_nowait(Submit(running.item))
    address.send_nowait(Submit(gone.item))
    await wait_all_tasks_blocked()
    gone.item.is_cancelled = True
    address.send_nowait(Abandon(gone.item))
    await wait_all_tasks_blocked()
    assert actor.pending_count == 0
    await trio.sleep(2)
    assert backend.batches == [["running"]]
    assert actor.statistics.failures[FailureReason.CANCELED] == 1
    address.send_nowait(Drain())


async def test_preserved_order_over_two_instances(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """The second request is done first, and leaves second."""

    slow_first = fake_backend()

    class Slow(slow_first):  # type: ignore[valid-type, misc]  # a class made for this test
        async def execute(self, requests):  # type: ignore[no-untyped-def]  # as in its base
            await trio.sleep(2 if requests[0].id == "slow" else 1)
            return await super().execute(requests)

    address = await start(nursery, scheduler(is_ordered=True), Slow, instances=2)
    slow, quick = Caller(4, id="slow"), Caller(4, id="quick")
    for caller in (slow, quick):
        address.send_nowait(Submit(caller.item))
    await trio.sleep(1.5)
    assert (slow.answer(), quick.answer()) == (None, None)
    await trio.sleep(1)
    assert isinstance(slow.answer(), InferenceResponse)
    assert isinstance(quick.answer(), InferenceResponse)
    address.send_nowait(Drain())
