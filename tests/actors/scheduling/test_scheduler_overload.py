"""Queue policies, overload, and batches given out ahead of time: the scheduler with real instances, virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.mail.messages import BatchDone, Execute, InstanceAddress, InstanceReady, SchedulerAddress, Submit
from actors.metrics.statistics import FailureReason, FlushReason, VersionStatistics
from actors.model.model import Model
from actors.scheduling.batching.batcher import build_scheduler
from backends.interface import BatchResult
from protocol.errors import Internal, ServerError, Unavailable
from protocol.messages import InferenceRequest
from repository.model_config import ModelDynamicBatching, ModelOptimizationPolicy, ModelQueuePolicy, TimeoutAction
from tests.actors.fakes import CONFIG, Caller, FakeBackend, fake_backend, request, spec

CONFIG_EAGER = replace(
    CONFIG, dynamic_batching=ModelDynamicBatching(), optimization=ModelOptimizationPolicy(eager_batching=True)
)


def model(
    backend: type[FakeBackend],
    batching: ModelDynamicBatching | None = None,
    *,
    instances: int = 1,
    eager: bool = False,
) -> Model:
    config = replace(
        CONFIG,
        dynamic_batching=batching or ModelDynamicBatching(),
        optimization=ModelOptimizationPolicy(eager_batching=eager),
    )
    return Model(config, 1, backend, [spec(config, name=f"m_{number}") for number in range(instances)])


class Call:
    """One request: what it got, and when, in seconds after it was made."""

    def __init__(self, rows: int = 1, *, id: str = "", priority: int = 0, timeout_us: int = 0) -> None:
        self.request = request(rows, id=id)
        self.request.priority = priority
        self.request.timeout_microseconds = timeout_us
        self.error: ServerError | None = None
        self.seconds = float("nan")

    async def __call__(self, served: Model) -> None:
        began = trio.current_time()
        try:
            await served.infer(self.request)
        except ServerError as error:
            self.error = error
        self.seconds = trio.current_time() - began

    @property
    def is_refused(self) -> bool:
        return self.error is not None


async def start(nursery: trio.Nursery, served: Model, *calls: Call) -> None:
    """In this order."""
    for call in calls:
        nursery.start_soon(call, served)
        await wait_all_tasks_blocked()


async def test_a_request_whose_time_is_over_is_refused_while_all_instances_are_busy(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    policy = ModelQueuePolicy(default_timeout_microseconds=2_000_000, allow_timeout_override=True)
    backend = fake_backend(seconds=10)
    served = model(backend, ModelDynamicBatching(default_queue_policy=policy))
    await nursery.start(served.run)
    running, late, hasty = Call(4, id="running"), Call(id="late"), Call(id="hasty", timeout_us=500_000)
    await start(nursery, served, running, late, hasty)
    await trio.sleep(3)
    assert [str(call.error) for call in (late, hasty)] == ["Request timeout expired"] * 2
    assert all(isinstance(call.error, Unavailable) for call in (late, hasty))
    assert [late.seconds, hasty.seconds] == pytest.approx([2, 0.5])
    assert served.statistics.failures[FailureReason.REJECTED] == 2
    assert served.pending_count == 0
    await trio.sleep(10)
    assert running.seconds == pytest.approx(10), "what runs has no timeout"
    served.drain()


async def test_a_late_request_that_may_stay_still_runs(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    policy = ModelQueuePolicy(timeout_action=TimeoutAction.DELAY, default_timeout_microseconds=1_000_000)
    backend = fake_backend(seconds=2)
    served = model(backend, ModelDynamicBatching(default_queue_policy=policy))
    await nursery.start(served.run)
    await start(nursery, served, Call(4, id="running"), Call(4, id="late"))
    await trio.sleep(1.5)
    await start(nursery, served, Call(4, id="fresh"))
    await trio.sleep(10)
    assert backend.batches == [["running"], ["fresh"], ["late"]]
    served.drain()


async def test_a_high_priority_overtakes_what_waits(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    backend = fake_backend(seconds=1)
    served = model(backend, ModelDynamicBatching(priority_levels=2, default_priority_level=2))
    await nursery.start(served.run)
    calls = [Call(4, id="running"), *(Call(4, id=f"low {n}") for n in range(2)), Call(4, id="high", priority=1)]
    await start(nursery, served, *calls)
    await trio.sleep(5)
    assert backend.batches == [["running"], ["high"], ["low 0"], ["low 1"]]
    served.drain()


@pytest.mark.slow
async def test_in_overload_goodput_stays_near_capacity_and_refusals_are_quick(autojump_clock: MockClock) -> None:
    """Three times what the instance can do arrives; the queue takes two batches."""
    backend = fake_backend(seconds=0.01)  # 4 rows in 10 ms: 400 a second
    policy = ModelQueuePolicy(max_queue_size=8)
    served = model(backend, ModelDynamicBatching(default_queue_policy=policy))
    calls = [Call() for _ in range(2400)]
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        async with trio.open_nursery() as clients:
            for call in calls:
                clients.start_soon(call, served)
                await trio.sleep(1 / 1200)
        served.drain()
    answered = [call for call in calls if not call.is_refused]
    refused = [call for call in calls if call.is_refused]
    assert len(answered) >= 0.97 * 2 * 400
    assert {str(call.error) for call in refused} == {"[request id: <id_unknown>] Exceeds maximum queue size"}
    assert max(call.seconds for call in refused) == 0
    assert max(call.seconds for call in answered) <= 0.031, "two batches before it, and its own"
    assert served.statistics.failures[FailureReason.REJECTED] == len(refused)
    assert served.statistics.flushes[FlushReason.FULL] >= len(answered) // 4 - 1


async def test_a_burst_fills_idle_instances_before_it_is_refused(autojump_clock: MockClock) -> None:
    """Two instances of four and a queue of four take twelve, though all come in one moment."""
    served = model(
        fake_backend(seconds=1),
        ModelDynamicBatching(default_queue_policy=ModelQueuePolicy(max_queue_size=4)),
        instances=2,
    )
    calls = [Call() for _ in range(20)]
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        for call in calls:
            nursery.start_soon(call, served)
        await trio.sleep(5)
        served.drain()
    assert sum(not call.is_refused for call in calls) == 12


@pytest.mark.slow
async def test_in_overload_timeouts_keep_goodput_near_capacity(autojump_clock: MockClock) -> None:
    """Requests that cannot be answered in time make room for those that can."""
    backend = fake_backend(seconds=0.01)
    policy = ModelQueuePolicy(default_timeout_microseconds=15_000)
    served = model(backend, ModelDynamicBatching(default_queue_policy=policy))
    calls = [Call() for _ in range(2400)]
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        async with trio.open_nursery() as clients:
            for call in calls:
                clients.start_soon(call, served)
                await trio.sleep(1 / 1200)
        served.drain()
    answered = [call for call in calls if not call.is_refused]
    assert len(answered) >= 0.97 * 2 * 400
    assert max(call.seconds for call in answered) <= 0.0251
    assert max(call.seconds for call in calls if call.is_refused) <= 0.0151


# Batches given out ahead of time.


class Queueing(FakeBackend):
    """Takes the next batch while it runs one, as a backend with a thread of its own; notes when it was given each."""

    can_run_ahead = True
    given: list[tuple[str, float]]

    def __init__(self, spec: object) -> None:
        super().__init__(spec)  # type: ignore[arg-type]  # as its base
        self.lock = trio.StrictFIFOLock()

    async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        type(self).given.append((requests[0].id, trio.current_time()))
        async with self.lock:
            return await super().execute(requests)


def queueing(*, seconds: float) -> type[Queueing]:
    return type("TestQueueing", (Queueing,), {"seconds": seconds, "made": [], "batches": [], "given": []})


async def test_a_full_batch_is_given_out_while_its_instance_is_busy(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    backend = queueing(seconds=1)
    served = model(backend)
    await nursery.start(served.run)
    calls = [Call(4, id=str(number)) for number in range(3)]
    await start(nursery, served, *calls)
    assert backend.given == [("0", 0.0), ("1", 0.0)], "one runs, one is ahead, the third stays in the queue"
    assert served.pending_count == 1
    await trio.sleep(5)
    assert backend.batches == [["0"], ["1"], ["2"]]
    assert [call.seconds for call in calls] == [pytest.approx(1), pytest.approx(2), pytest.approx(3)]
    queue = served.statistics.frozen("m", 1).inference_stats.queue
    assert queue.ns == pytest.approx(3e9), "what is given out ahead waits until it runs"
    served.drain()


async def test_a_batch_that_may_grow_waits_for_an_idle_instance(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    backend = queueing(seconds=1)
    served = model(backend)
    await nursery.start(served.run)
    await start(nursery, served, Call(4, id="first"), Call(id="a"), Call(id="b"))
    assert backend.given == [("first", 0.0)]
    await trio.sleep(5)
    assert backend.batches == [["first"], ["a", "b"]]
    served.drain()


@pytest.mark.parametrize(
    ("batching", "eager", "runs_ahead"),
    [
        (ModelDynamicBatching(), False, True),
        (ModelDynamicBatching(default_queue_policy=ModelQueuePolicy(max_queue_size=9)), False, False),
        (ModelDynamicBatching(default_queue_policy=ModelQueuePolicy(default_timeout_microseconds=9)), False, False),
        (ModelDynamicBatching(priority_levels=2, default_priority_level=1), False, False),
        (ModelDynamicBatching(default_queue_policy=ModelQueuePolicy(max_queue_size=9)), True, True),
    ],
)
async def test_what_limits_the_queue_keeps_requests_there_unless_batching_is_eager(
    batching: ModelDynamicBatching, eager: bool, runs_ahead: bool, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    backend = queueing(seconds=1)
    served = model(backend, batching, eager=eager)
    await nursery.start(served.run)
    await start(nursery, served, Call(4, id="0"), Call(4, id="1"))
    assert served.pending_count == (0 if runs_ahead else 1)
    assert len(backend.given) == (2 if runs_ahead else 1)
    served.drain()


async def test_eager_batching_forms_the_next_batch_for_a_backend_that_takes_one_at_a_time(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    backend = fake_backend(seconds=1)
    served = model(backend, eager=True)
    await nursery.start(served.run)
    calls = [Call(4, id="0"), Call(4, id="1"), Call(4, id="2")]
    await start(nursery, served, *calls)
    assert (backend.batches, served.pending_count) == ([["0"]], 1)
    await trio.sleep(5)
    assert backend.batches == [["0"], ["1"], ["2"]]
    assert [call.seconds for call in calls] == [pytest.approx(1), pytest.approx(2), pytest.approx(3)]
    served.drain()


@pytest.mark.parametrize("is_ahead_inside", [True, False])
async def test_a_death_answers_the_running_batch_and_the_one_ahead_once(
    is_ahead_inside: bool, autojump_clock: MockClock
) -> None:
    """Whether the instance has taken it already or not."""

    def die(backend: FakeBackend, requests: Sequence[InferenceRequest]) -> None:
        raise backend.die()

    backend = queueing(seconds=1) if is_ahead_inside else fake_backend(seconds=1)
    backend.on_execute = staticmethod(die)
    served = model(backend, eager=True)
    calls = [Call(4, id=str(number)) for number in range(3)]
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        await start(nursery, served, *calls)
        await trio.sleep(1.2)
        assert all(isinstance(call.error, Unavailable) for call in calls)
        assert sum(served.statistics.failures.values()) == 3
        assert served.pending_count == 0
        backend.on_execute = None
        await trio.sleep(1)
        again = Call(id="again")
        await again(served)
        assert not again.is_refused
        served.drain()


@pytest.mark.slow
async def test_the_batch_ahead_may_end_before_the_running_one(autojump_clock: MockClock) -> None:
    """As it does where an instance is stopped and its tasks are cancelled in any order."""
    scheduler = build_scheduler(CONFIG_EAGER, VersionStatistics(), can_run_ahead=True)
    to_inbox, inbox = trio.open_memory_channel[Execute](2)
    instance = InstanceAddress("m_0", to_inbox)
    running, ahead = Caller(4, id="running"), Caller(4, id="ahead")
    async with trio.open_nursery() as nursery:
        address: SchedulerAddress = await nursery.start(scheduler.run)
        address.send_nowait(InstanceReady(instance))
        address.send_nowait(Submit(running.item))
        address.send_nowait(Submit(ahead.item))
        given = [await inbox.receive(), await inbox.receive()]
        for message in reversed(given):
            address.send_nowait(BatchDone(instance, message, message.batch, [Internal("stopped")], 0.0, None))
            await wait_all_tasks_blocked()
            assert (ahead.answer() is not None, running.answer() is not None) == (
                message is given[1],
                message is given[0],
            )
        nursery.cancel_scope.cancel()


async def test_stopped_after_the_batch_ahead_has_ended_the_running_one_is_answered(autojump_clock: MockClock) -> None:
    scheduler = build_scheduler(CONFIG_EAGER, VersionStatistics(), can_run_ahead=True)
    to_inbox, inbox = trio.open_memory_channel[Execute](2)
    instance = InstanceAddress("m_0", to_inbox)
    running, ahead = Caller(4, id="running"), Caller(4, id="ahead")
    async with trio.open_nursery() as nursery:
        address: SchedulerAddress = await nursery.start(scheduler.run)
        address.send_nowait(InstanceReady(instance))
        address.send_nowait(Submit(running.item))
        address.send_nowait(Submit(ahead.item))
        await inbox.receive()
        last = await inbox.receive()
        address.send_nowait(BatchDone(instance, last, last.batch, [Internal("stopped")], 0.0, None))
        nursery.cancel_scope.cancel()
    assert isinstance(ahead.answer(), Internal)
    assert isinstance(running.answer(), Unavailable)


async def test_stopped_now_the_batch_ahead_is_answered_too(autojump_clock: MockClock) -> None:
    served = model(queueing(seconds=10))
    calls = [Call(4, id=str(number)) for number in range(3)]
    async with trio.open_nursery() as callers, trio.open_nursery() as nursery:
        await nursery.start(served.run)
        await start(callers, served, *calls)
        nursery.cancel_scope.cancel()
    assert all(isinstance(call.error, Unavailable) for call in calls)


async def test_draining_runs_the_batch_ahead(autojump_clock: MockClock) -> None:
    served = model(queueing(seconds=1))
    calls = [Call(4, id=str(number)) for number in range(3)]
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        await start(nursery, served, *calls)
        served.drain()
    assert [call.error for call in calls] == [None] * 3
