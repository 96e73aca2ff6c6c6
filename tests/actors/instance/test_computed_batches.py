"""Backends that compute a batch within `begin`: what the scheduler and the instance do with it, under virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.instance import runner
from actors.mail.messages import Abandon, Drain, SchedulerAddress, Submit
from backends.interface import STARTED, BatchResult, InstanceDied, Started
from protocol.errors import Internal, InvalidArgument, Unavailable
from protocol.messages import InferenceRequest, InferenceResponse
from tests.actors.fakes import TIMING, Caller, FakeBackend
from tests.actors.scheduling.test_scheduler import scheduler, start


class AtOnce(FakeBackend):
    """Requests called "late" are answered after a second, those called "free" too, and let others through meanwhile."""

    can_overlap = True

    def begin(
        self,
        requests: Sequence[InferenceRequest],
        done: Callable[[BatchResult | Exception], None],
        free: Callable[[], None] | None = None,
    ) -> BatchResult | Started:
        ids = [request.id for request in requests]
        type(self).batches.append(ids)
        result: BatchResult | Exception = self.answer(requests)
        on_execute = type(self).on_execute
        if on_execute is not None:
            try:
                on_execute(self, requests)
            except Exception as error:
                result = error
        if "free" in ids:
            assert free is not None
            free()
        if {"late", "free"} & set(ids):
            assert self.nursery is not None
            self.nursery.start_soon(self.late, done, result)
            return STARTED
        if isinstance(result, Exception):
            raise result
        return result

    nursery: trio.Nursery | None = None

    def answer(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        return BatchResult([InferenceResponse("m", 1, [], request.id) for request in requests], TIMING)

    async def late(self, done: Callable[[BatchResult | Exception], None], result: BatchResult | Exception) -> None:
        await trio.sleep(1)
        done(result)

    async def attend(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self.nursery:
            task_status.started()
            await self.died.wait()
            self.nursery.cancel_scope.cancel()

    async def execute_overlapping(self, requests: Sequence[InferenceRequest], free: Callable[[], None]) -> BatchResult:
        to_me, results = trio.open_memory_channel[BatchResult | Exception](1)
        begun = self.begin(requests, to_me.send_nowait, free)
        result = await results.receive() if begun is STARTED else begun
        if isinstance(result, Exception):
            raise result
        return result


def at_once(on_execute: Callable[[FakeBackend, Sequence[InferenceRequest]], None] | None = None) -> type[AtOnce]:
    given = staticmethod(on_execute) if on_execute is not None else None
    return type("TestBackend", (AtOnce,), {"made": [], "batches": [], "on_execute": given})


def submit(address: SchedulerAddress, *ids: str) -> list[Caller]:
    callers = [Caller(id=id) for id in ids]
    for caller in callers:
        address.send_nowait(Submit(caller.item))
    return callers


def ids_of(callers: Sequence[Caller]) -> list[str]:
    answers = [caller.answer() for caller in callers]
    return [answer.id if isinstance(answer, InferenceResponse) else type(answer).__name__ for answer in answers]


async def test_a_burst_runs_in_the_turn_of_the_scheduler(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """No task of the instance wakes for it."""
    backend = at_once()
    address = await start(nursery, scheduler(), backend)
    await wait_all_tasks_blocked()
    callers = submit(address, "0", "1", "2")
    assert backend.batches == []
    await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()
    assert backend.batches == [["0", "1", "2"]]
    assert ids_of(callers) == ["0", "1", "2"]


async def test_what_waits_is_run_after_the_callers_before_are_answered(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """However much waits, calls do not nest deeper."""
    ended: list[int] = []

    def note(backend: FakeBackend, requests: Sequence[InferenceRequest]) -> None:
        ended.append(sum(caller.answers.statistics().current_buffer_used for caller in callers))

    address = await start(nursery, scheduler(), at_once(note))
    callers = submit(address, *map(str, range(400)))
    await wait_all_tasks_blocked()
    assert ids_of(callers) == [str(n) for n in range(400)]
    assert ended == list(range(0, 400, 4))


@pytest.mark.parametrize(("seconds", "has_run_all"), [(3600.0, True), (0.0, False)])
async def test_batches_follow_one_another_for_a_while(
    autojump_clock: MockClock,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    has_run_all: bool,
) -> None:
    """Then all else has its turn, and the task of the instance goes on."""
    monkeypatch.setattr(runner, "MOST_CALL_SECONDS", seconds)
    backend = at_once()
    address = await start(nursery, scheduler(), backend)
    await wait_all_tasks_blocked()
    callers = submit(address, *map(str, range(12)))
    await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()
    assert (len(backend.batches) == 3) is has_run_all
    await wait_all_tasks_blocked()
    assert ids_of(callers) == [str(n) for n in range(12)]
    assert backend.batches == [[str(n) for n in range(first, first + 4)] for first in (0, 4, 8)]


async def test_what_is_put_off_is_answered_when_the_instance_dies_meanwhile(
    autojump_clock: MockClock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "MOST_CALL_SECONDS", 0.0)

    def die_soon(backend: FakeBackend, requests: Sequence[InferenceRequest]) -> None:
        backend.die()

    backend = at_once(die_soon)
    address = await start(nursery, scheduler(), backend)
    await wait_all_tasks_blocked()
    callers = submit(address, *map(str, range(12)))
    await wait_all_tasks_blocked()
    ids = ids_of(callers)
    assert ids[:4] == ["0", "1", "2", "3"]
    for number, answered in enumerate(ids[4:], 4):  # the slot's task may have been as fast
        assert answered in (str(number), InstanceDied.__name__, Unavailable.__name__)


async def test_a_batch_that_would_follow_and_of_which_nobody_is_left(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    def leave(backend: FakeBackend, requests: Sequence[InferenceRequest]) -> None:
        for caller in callers[4:8]:
            caller.item.cancel()

    backend = at_once(leave)
    address = await start(nursery, scheduler(), backend)
    callers = submit(address, *map(str, range(9)))
    await wait_all_tasks_blocked()
    assert backend.batches == [["0", "1", "2", "3"], ["8"]]
    assert ids_of([*callers[:4], *callers[8:]]) == ["0", "1", "2", "3", "8"]


async def test_late_answers_keep_the_instance_busy_unless_it_is_freed(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    backend = at_once()
    address = await start(nursery, scheduler(), backend)
    for first in ("late", "free"):
        backend.batches.clear()
        callers = submit(address, first)
        await wait_all_tasks_blocked()
        callers += submit(address, "next")
        await wait_all_tasks_blocked()
        assert backend.batches == ([["late"]] if first == "late" else [["free"], ["next"]])
        await trio.sleep(2)
        assert ids_of(callers) == [first, "next"]
        assert backend.batches == [[first], ["next"]]


async def test_late_answers_of_what_the_task_has_begun_keep_the_instance_busy_too(
    autojump_clock: MockClock, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "MOST_CALL_SECONDS", 0.0)
    backend = at_once()
    address = await start(nursery, scheduler(), backend)
    callers = submit(address, "0", "1", "2", "3", "late")
    await wait_all_tasks_blocked()
    callers += submit(address, "next")
    await wait_all_tasks_blocked()
    assert backend.batches == [["0", "1", "2", "3"], ["late"]]
    await trio.sleep(2)
    assert backend.batches[2:] == [["next"]]
    assert ids_of(callers) == ["0", "1", "2", "3", "late", "next"]


@pytest.mark.parametrize(
    ("error", "kind"), [(InvalidArgument("no"), "InvalidArgument"), (ValueError("no"), "Internal")]
)
async def test_an_error_is_the_batchs(
    autojump_clock: MockClock, nursery: trio.Nursery, error: Exception, kind: str
) -> None:
    def fail(backend: FakeBackend, requests: Sequence[InferenceRequest]) -> None:
        if requests[0].id == "bad":
            raise error

    address = await start(nursery, scheduler(), at_once(fail))
    bad = submit(address, "bad", "beside")
    await wait_all_tasks_blocked()
    good = submit(address, "good")
    await wait_all_tasks_blocked()
    assert ids_of([*bad, *good]) == [kind, kind, "good"]


async def test_a_death_ends_the_instance(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    def die(backend: FakeBackend, requests: Sequence[InferenceRequest]) -> None:
        raise backend.die()

    backend = at_once(die)
    actor = scheduler()
    address = await start(nursery, actor, backend)
    callers = submit(address, "0")
    await wait_all_tasks_blocked()
    assert ids_of(callers) == [InstanceDied.__name__]
    assert (actor.live_count, backend.made[0].unloads) == (0, 1)


async def test_a_batch_of_which_nobody_is_left_is_not_run(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    backend = at_once()
    address = await start(nursery, scheduler(), backend)
    [gone] = submit(address, "gone")
    gone.item.cancel()
    await wait_all_tasks_blocked()
    there = submit(address, "there")
    await wait_all_tasks_blocked()
    assert backend.batches == [["there"]]
    assert ids_of(there) == ["there"]


async def test_stopped_now_it_fails_what_is_late(autojump_clock: MockClock) -> None:
    backend = at_once()
    async with trio.open_nursery() as nursery:
        address = await start(nursery, scheduler(), backend)
        callers = submit(address, "late")
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert isinstance(callers[0].answer(), Unavailable)
    assert backend.made[0].unloads == 1


async def test_drained_it_finishes_and_unloads(autojump_clock: MockClock) -> None:
    backend = at_once()
    async with trio.open_nursery() as nursery:
        address = await start(nursery, scheduler(), backend)
        callers = submit(address, "0", "1", "2", "3", "late")
        address.send_nowait(Abandon(submit(address, "gone")[0].item))
        address.send_nowait(Drain())
    assert ids_of(callers) == ["0", "1", "2", "3", "late"]
    assert backend.made[0].unloads == 1


async def test_too_few_responses_are_the_backends_fault(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    class Few(AtOnce):
        made: list[FakeBackend] = []  # noqa: RUF012 (as the base has them)
        batches: list[list[str]] = []  # noqa: RUF012

        def answer(self, requests: object) -> BatchResult:
            return BatchResult([], TIMING)

    address = await start(nursery, scheduler(), Few)
    [caller] = submit(address, "0")
    await wait_all_tasks_blocked()
    answer = caller.answer()
    assert isinstance(answer, Internal)
    assert answer.message == "model instance 'm_0' gave 0 responses to 1 requests"
