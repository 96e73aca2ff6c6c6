"""Batches that a backend begins by a call, with a real scheduler and instance."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.instance.instance import ModelInstance
from actors.instance.slot import BatchSlot
from actors.mail.messages import Abandon, Drain, Execute, InstanceReady, SchedulerAddress, SchedulerMessage, Submit
from actors.metrics.statistics import FailureReason, VersionStatistics
from actors.scheduling.batching.batcher import build_scheduler
from actors.scheduling.batching.policy import DirectPolicy
from actors.scheduling.scheduler import Scheduler
from backends.interface import STARTED, BatchResult, InstanceDied, Started
from protocol.errors import Internal, ServerError, Unavailable
from protocol.messages import InferenceRequest, InferenceResponse
from tests.actors.fakes import CONFIG, TIMING, Caller, FakeBackend, fake_backend, spec

End = BatchResult | Exception


class Begun:
    """A batch that the backend has begun; the test ends it."""

    def __init__(
        self, requests: Sequence[InferenceRequest], done: Callable[[End], None], free: Callable[[], None] | None
    ) -> None:
        self.ids = [request.id for request in requests]
        self.free = free
        self._done = done

    def end(self, error: Exception | None = None) -> None:
        responses = [InferenceResponse("m", 1, [], id) for id in self.ids]
        self._done(BatchResult(responses, TIMING) if error is None else error)


class Beginning(FakeBackend):
    """Begins by a call all but what is called "waits"."""

    can_overlap = True
    begun: list[Begun]
    cancelled: list[str]

    def begin(
        self,
        requests: Sequence[InferenceRequest],
        done: Callable[[End], None],
        free: Callable[[], None] | None = None,
    ) -> BatchResult | Started | None:
        if requests[0].id == "waits":
            return None
        self.begun.append(Begun(requests, done, free))
        return STARTED

    def cancel(self, request: InferenceRequest) -> None:
        self.cancelled.append(request.id)


def beginning(base: type[Beginning] = Beginning, *, seconds: float = 0.0) -> type[Beginning]:
    attributes = dict(vars(fake_backend(seconds=seconds)))
    return type("TestBackend", (base,), {**attributes, "begun": [], "cancelled": []})


async def start(
    nursery: trio.Nursery, backend: type[Beginning], actor: Scheduler | None = None
) -> tuple[Scheduler, SchedulerAddress]:
    actor = Scheduler("m", DirectPolicy(), VersionStatistics()) if actor is None else actor
    address: SchedulerAddress = await nursery.start(actor.run)
    await nursery.start(ModelInstance("m_0", backend(spec()), address).run)
    return actor, address


async def submit(address: SchedulerAddress, *ids: str) -> list[Caller]:
    callers = [Caller(id=id) for id in ids]
    for caller in callers:
        address.send_nowait(Submit(caller.item))
    await wait_all_tasks_blocked()
    return callers


def error(caller: Caller) -> ServerError:
    answer = caller.answer()
    assert isinstance(answer, ServerError)
    return answer


async def test_one_batch_is_begun_after_the_other(nursery: trio.Nursery) -> None:
    backend = beginning()
    actor, address = await start(nursery, backend)
    callers = await submit(address, "a", "b", "c")
    for number, caller in enumerate(callers):
        assert [batch.ids for batch in backend.begun] == [["a"], ["b"], ["c"]][: number + 1]
        assert caller.answer() is None
        backend.begun[-1].end()
        assert isinstance(caller.answer(), InferenceResponse)
        assert actor.statistics.inference_count == number + 1
    address.send_nowait(Drain())


async def test_what_cannot_be_begun_waits_for_a_task(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    backend = beginning(seconds=1)
    _, address = await start(nursery, backend)
    first, waits, last = await submit(address, "a", "waits", "b")
    backend.begun[0].end()
    assert isinstance(first.answer(), InferenceResponse)
    await trio.sleep(0.5)
    assert (backend.batches, len(backend.begun)) == ([["waits"]], 1)
    await trio.sleep(1)
    assert isinstance(waits.answer(), InferenceResponse)
    assert [batch.ids for batch in backend.begun] == [["a"], ["b"]]
    backend.begun[1].end()
    assert isinstance(last.answer(), InferenceResponse)
    address.send_nowait(Drain())


@pytest.mark.parametrize("name", ["b", "waits"])
async def test_a_batch_that_is_given_early_waits_for_the_one_before(
    autojump_clock: MockClock, nursery: trio.Nursery, name: str
) -> None:
    """As with `eager_batching`."""
    backend = beginning()
    to_inbox, inbox = trio.open_memory_channel[SchedulerMessage](9)
    await nursery.start(
        ModelInstance(
            "m_0", backend(spec()), SchedulerAddress(to_inbox.send_nowait, lambda item: None, lambda: None)
        ).run
    )
    ready = await inbox.receive()
    assert isinstance(ready, InstanceReady)
    slot = ready.instance.inbox
    slot.send_nowait(Execute([Caller(id="a").item]))
    slot.send_nowait(Execute([Caller(id=name).item]))
    await wait_all_tasks_blocked()
    assert ([batch.ids for batch in backend.begun], backend.batches) == ([["a"]], [])
    backend.begun[0].end()
    await wait_all_tasks_blocked()
    assert [batch.ids for batch in backend.begun[1:]] + backend.batches == [[name]]
    slot.close()


async def test_a_freed_instance_takes_another_batch_beside(nursery: trio.Nursery) -> None:
    backend = beginning()
    actor, address = await start(nursery, backend)
    first, second, third = await submit(address, "a", "b", "c")
    free = backend.begun[0].free
    assert free is not None
    free()
    await wait_all_tasks_blocked()
    assert [batch.ids for batch in backend.begun] == [["a"], ["b"]]
    backend.begun[0].end()
    await wait_all_tasks_blocked()
    assert isinstance(first.answer(), InferenceResponse)
    assert (second.answer(), third.answer(), len(backend.begun), actor.live_count) == (None, None, 2, 1)
    backend.begun[1].end()
    assert [batch.ids for batch in backend.begun] == [["a"], ["b"], ["c"]]
    backend.begun[2].end()
    assert isinstance(third.answer(), InferenceResponse)
    address.send_nowait(Drain())


async def test_a_batch_that_fails_fails_alone(nursery: trio.Nursery) -> None:
    backend = beginning()
    actor, address = await start(nursery, backend)
    first, second = await submit(address, "a", "b")
    backend.begun[0].end(Internal("no"))
    assert error(first).message == "no"
    assert actor.statistics.failures[FailureReason.BACKEND] == 1
    backend.begun[1].end()
    assert isinstance(second.answer(), InferenceResponse)
    address.send_nowait(Drain())


async def test_a_death_ends_the_instance(nursery: trio.Nursery) -> None:
    backend = beginning()
    actor, address = await start(nursery, backend)
    first, second = await submit(address, "a", "b")
    backend.begun[0].end(InstanceDied("gone"))
    await wait_all_tasks_blocked()
    assert error(first).message == "gone"
    assert isinstance(error(second), Unavailable)
    assert (actor.live_count, len(backend.begun), backend.made[0].unloads) == (0, 1, 1)
    address.send_nowait(Drain())


async def test_an_instance_that_is_dying_takes_no_batch_beside(nursery: trio.Nursery) -> None:
    backend = beginning()
    actor, address = await start(nursery, backend)
    first, second = await submit(address, "a", "b")
    one = backend.begun[0].free
    assert one is not None
    one()
    await wait_all_tasks_blocked()
    backend.begun[0].end(InstanceDied("gone"))
    assert error(first).message == "gone"
    another = backend.begun[1].free
    assert another is not None
    another()
    late = Caller(id="c")
    address.send_nowait(Submit(late.item))
    await wait_all_tasks_blocked()
    assert isinstance(error(second), Unavailable)
    assert isinstance(error(late), Unavailable)
    assert (actor.live_count, len(backend.begun)) == (0, 2)
    address.send_nowait(Drain())


async def test_stopped_the_instance_answers_what_it_has_begun_and_hears_no_more_of_it() -> None:
    backend = beginning()
    actor = build_scheduler(CONFIG, VersionStatistics(), can_run_ahead=False)
    async with trio.open_nursery() as outer:
        address: SchedulerAddress = await outer.start(actor.run)
        async with trio.open_nursery() as nursery:
            await nursery.start(ModelInstance("m_0", backend(spec()), address).run)
            [caller] = await submit(address, "a")
            nursery.cancel_scope.cancel()
        assert error(caller).message == "model instance 'm_0' was stopped"
        backend.begun[0].end()
        assert caller.answer() is None
        assert actor.statistics.inference_count == 0
        address.send_nowait(Drain())


async def test_the_backend_is_told_of_callers_that_go(nursery: trio.Nursery) -> None:
    backend = beginning()
    actor, address = await start(nursery, backend)
    [caller] = await submit(address, "a")
    caller.item.cancel()
    address.send_nowait(Abandon(caller.item))
    assert backend.cancelled == ["a"]
    backend.begun[0].end()
    assert caller.answer() is None
    assert caller.item.watcher is None
    assert actor.statistics.failures[FailureReason.CANCELED] == 1
    address.send_nowait(Drain())


async def test_an_end_that_comes_before_the_beginning_has_returned_counts(nursery: trio.Nursery) -> None:
    """No backend should, but its batch is not to hang."""

    class Early(Beginning):
        def begin(
            self,
            requests: Sequence[InferenceRequest],
            done: Callable[[End], None],
            free: Callable[[], None] | None = None,
        ) -> Started:
            done(BatchResult([InferenceResponse("m", 1, [], request.id) for request in requests], TIMING))
            return STARTED

    _, address = await start(nursery, beginning(Early))
    callers = await submit(address, "a", "b", "c")
    assert all(isinstance(caller.answer(), InferenceResponse) for caller in callers)
    address.send_nowait(Drain())


async def test_a_beginning_that_raises_costs_its_batch(nursery: trio.Nursery) -> None:
    """However it raises: with an error for the client, or by a defect."""

    class Broken(Beginning):
        def begin(
            self,
            requests: Sequence[InferenceRequest],
            done: Callable[[End], None],
            free: Callable[[], None] | None = None,
        ) -> BatchResult | Started | None:
            if requests[0].id == "refused":
                raise Unavailable("not now")
            if requests[0].id == "defect":
                raise KeyError("defect")
            return super().begin(requests, done, free)

    backend = beginning(Broken)
    actor, address = await start(nursery, backend)
    refused, defect, another, good = await submit(address, "refused", "defect", "defect", "good")
    assert error(refused).message == "not now"
    for caller in (defect, another):
        assert error(caller).message == "model instance 'm_0' could not begin to run the request"
    assert [batch.ids for batch in backend.begun] == [["good"]]
    backend.begun[0].end()
    assert isinstance(good.answer(), InferenceResponse)
    assert (actor.live_count, len(backend.made)) == (1, 1)
    address.send_nowait(Drain())


async def test_a_batch_that_cannot_be_begun_stays_in_front() -> None:
    slot = BatchSlot("m_0", BatchSlot.leave_to_task, lambda _: None, None)
    slot.is_busy = True
    messages = [Execute([]), Execute([])]
    for message in messages:
        slot.send_nowait(message)
    slot.begin_next()
    assert [slot.receive_nowait(), slot.receive_nowait()] == messages
