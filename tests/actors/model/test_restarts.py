"""Requests wait while the last instance of their model is started again, and what they do not wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.model.model import Model
from backends.interface import BatchTiming, InstanceDied, NotBegun, Responder
from protocol.errors import Internal, Unavailable
from protocol.messages import InferenceRequest, InferenceResponse
from repository.model_config import (
    ModelConfig,
    ModelDynamicBatching,
    ModelQueuePolicy,
    ModelSequenceBatching,
    ModelTransactionPolicy,
    TimeoutAction,
)
from tests.actors.fakes import CONFIG, FakeBackend, fake_backend, request, spec

NO_INSTANCE = "model 'm' is not ready: all of its instances have stopped and are restarting"


def slow_start(seconds: float) -> type[FakeBackend]:
    """Each load but the first of each instance takes so long."""

    class SlowStart(fake_backend()):  # type: ignore[misc]  # a class that was made
        async def load(self) -> None:
            if len(self.made) > self.at_once:
                await trio.sleep(seconds)
            await super().load()

        at_once = 1

    return SlowStart


def model(backend: type[FakeBackend], config: ModelConfig = CONFIG, *, instances: int = 1, wait: float = 5.0) -> Model:
    backend.at_once = instances  # type: ignore[attr-defined]
    return Model(config, 1, backend, [spec(config, name=f"m_{i}") for i in range(instances)], restart_wait=wait)


class Calls:
    """What requests have come to, by their ids, and when."""

    def __init__(self, served: Model, nursery: trio.Nursery) -> None:
        self.ends: dict[str, tuple[str, float]] = {}
        self._served = served
        self._nursery = nursery

    def begin(self, id: str, **fields: object) -> None:
        self._nursery.start_soon(self._call, msgspec.structs.replace(request(id=id), **fields))

    async def _call(self, asked: InferenceRequest) -> None:
        started = trio.current_time()
        try:
            await self._served.infer(asked)
            text = "answered"
        except Unavailable as error:
            text = error.message
        self.ends[asked.id] = text, trio.current_time() - started


async def worked(served: Model) -> None:
    await served.infer(request(id="first"))


@pytest.mark.parametrize(
    ("load_seconds", "wait", "early", "late"),
    [
        (0.0, 5.0, ("answered", 0), ("answered", 0)),
        (3.0, 5.0, ("answered", 3), ("answered", 1)),
        (8.0, 5.0, (NO_INSTANCE, 5), (NO_INSTANCE, 3)),
        (3.0, 0.0, (NO_INSTANCE, 0), (NO_INSTANCE, 0)),
    ],
)
async def test_requests_wait_for_a_restart_and_no_longer_than_they_are_told(
    autojump_clock: MockClock, load_seconds: float, wait: float, early: tuple[str, float], late: tuple[str, float]
) -> None:
    """Those that were in the queue, and those that come in the meantime; the model is not ready then."""
    backend = slow_start(load_seconds)
    served = model(backend, wait=wait)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        await worked(served)
        backend.made[0].die()
        await wait_all_tasks_blocked()
        calls = Calls(served, nursery)
        calls.begin("early")
        await wait_all_tasks_blocked()
        assert served.is_ready == (load_seconds == 0)
        await trio.sleep(2)
        calls.begin("late")
        await trio.sleep(10)
        assert served.is_ready
        served.drain()
    assert calls.ends == {"early": early, "late": late}


async def test_what_was_queued_when_the_instance_died_waits_and_its_batch_fails(autojump_clock: MockClock) -> None:
    def die(backend: FakeBackend, requests: object) -> None:
        if len(backend.made) == 1 and len(backend.batches) > 1:
            raise backend.die()

    backend = slow_start(1)
    backend.on_execute = staticmethod(die)
    backend.seconds = 1
    served = model(backend)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        await worked(served)
        calls = Calls(served, nursery)
        calls.begin("in the batch")
        await wait_all_tasks_blocked()
        calls.begin("in the queue")
        await trio.sleep(5)
        served.drain()
    assert calls.ends == {"in the batch": ("the worker has died", 1), "in the queue": ("answered", 3)}


async def test_nobody_waits_for_an_instance_that_has_never_worked(autojump_clock: MockClock) -> None:
    backend = slow_start(0)
    served = model(backend)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        backend.made[0].die()
        await wait_all_tasks_blocked()
        calls = Calls(served, nursery)
        calls.begin("a")
        await trio.sleep(2)
        served.drain()
    assert calls.ends == {"a": (NO_INSTANCE, 0)}


async def test_nobody_waits_for_a_restart_that_fails(autojump_clock: MockClock) -> None:
    backend = slow_start(1)

    def fail(made: FakeBackend) -> None:
        if len(made.made) == 2:
            raise Internal("no")

    backend.on_load = staticmethod(fail)
    served = model(backend)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        await worked(served)
        calls = Calls(served, nursery)
        backend.made[0].die()
        await wait_all_tasks_blocked()
        calls.begin("a")
        await trio.sleep(5)
        assert served.is_ready
        served.drain()
    assert calls.ends == {"a": (NO_INSTANCE, 1)}


async def test_of_several_instances_one_that_comes_is_enough(autojump_clock: MockClock) -> None:
    backend = slow_start(1)
    served = model(backend, instances=2)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        await worked(served)  # the first one alone
        for made in backend.made:
            made.die()
        await wait_all_tasks_blocked()
        calls = Calls(served, nursery)
        calls.begin("a")
        await trio.sleep(5)
        served.drain()
    assert calls.ends == {"a": ("answered", 1)}


async def test_the_queues_policy_holds_meanwhile(autojump_clock: MockClock) -> None:
    """Its size, and how long a request may wait there."""
    policy = ModelQueuePolicy(
        timeout_action=TimeoutAction.REJECT, default_timeout_microseconds=2_000_000, max_queue_size=2
    )
    config = msgspec.structs.replace(CONFIG, dynamic_batching=ModelDynamicBatching(default_queue_policy=policy))
    backend = slow_start(4)
    served = model(backend, config)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        await worked(served)
        backend.made[0].die()
        await wait_all_tasks_blocked()
        calls = Calls(served, nursery)
        for id in "abc":
            calls.begin(id)
            await wait_all_tasks_blocked()
        await trio.sleep(3)
        calls.begin("d")
        await trio.sleep(3)
        served.drain()
    assert calls.ends["c"] == ("[request id: c] Exceeds maximum queue size", 0)
    assert calls.ends["a"] == calls.ends["b"] == ("Request timeout expired", 2)
    assert calls.ends["d"] == ("answered", 1)


@pytest.mark.parametrize("is_drained", [False, True])
async def test_a_caller_who_goes_and_a_drain_leave_nothing(autojump_clock: MockClock, is_drained: bool) -> None:
    backend = slow_start(3)
    served = model(backend)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        await worked(served)
        backend.made[0].die()
        await wait_all_tasks_blocked()
        with trio.move_on_after(1):
            await served.infer(request(id="neither"))
        calls = Calls(served, nursery)
        calls.begin("stays")
        await wait_all_tasks_blocked()
        if is_drained:
            served.drain()
        await trio.sleep(4)
        served.drain()
    assert calls.ends == {"stays": ("answered", 2)}
    assert not served.pending_count


async def test_new_sequences_wait_and_open_ones_are_over(autojump_clock: MockClock) -> None:
    config = msgspec.structs.replace(CONFIG, dynamic_batching=None, sequence_batching=ModelSequenceBatching())
    backend = slow_start(2)
    served = model(backend, config)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        calls = Calls(served, nursery)
        calls.begin("1", sequence_id=1, sequence_start=True)
        await trio.sleep(1)
        backend.made[0].die()
        await wait_all_tasks_blocked()
        calls.begin("2", sequence_id=2, sequence_start=True, sequence_end=True)
        await trio.sleep(5)
        served.drain()
    assert calls.ends == {"1": ("answered", 0), "2": ("answered", 2)}


async def test_a_worker_that_is_killed_again_and_again_is_there_again_at_once(autojump_clock: MockClock) -> None:
    backend = slow_start(0)
    served = model(backend, wait=0)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        for _ in range(100):
            await worked(served)
            backend.made[-1].die()
            await trio.sleep(1)
            assert served.is_ready
        served.drain()


async def test_what_an_instance_gives_back_runs_on_the_next_one(autojump_clock: MockClock) -> None:
    """Of a decoupled model: what it had begun fails with it, what it had not is queued again."""

    class Streaming(slow_start(1)):  # type: ignore[misc]  # a class that was made
        can_be_decoupled = True

        async def execute_decoupled(
            self, requests: Sequence[InferenceRequest], responders: Sequence[Responder]
        ) -> BatchTiming:
            if self.died.is_set():
                for responder in responders:
                    responder.close(NotBegun())
                raise InstanceDied("the worker has died")
            for asked, responder in zip(requests, responders, strict=True):
                if len(self.made) > 1:
                    responder.send_nowait(InferenceResponse("m", 1, [], id=asked.id, parameters={"by": len(self.made)}))
                else:
                    self.kept.append((asked.id, responder))
            return BatchTiming(0, 0, 0)

        kept: ClassVar[list[tuple[str, Responder]]] = []

    config = msgspec.structs.replace(CONFIG, model_transaction_policy=ModelTransactionPolicy(decoupled=True))
    served = model(Streaming, config)
    ends: dict[str, object] = {}

    async def call(id: str) -> None:
        async def respond(response: InferenceResponse) -> None:
            ends[id] = response.parameters["by"]

        try:
            await served.infer_stream(request(id=id), respond)
        except Unavailable as error:
            ends[id] = error.message

    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        for id in ("begun", "not begun", "neither"):
            nursery.start_soon(call, id)
        await wait_all_tasks_blocked()
        assert {id for id, _ in Streaming.kept} == {"begun", "not begun", "neither"}
        Streaming.made[0].die()
        for id, responder in Streaming.kept:
            responder.close(InstanceDied("the worker has died") if id == "begun" else NotBegun())
        await trio.sleep(3)
        assert served.pending_count == 0
        served.drain()
    assert ends == {"begun": "the worker has died", "not begun": 2, "neither": 2}


class Retiring(FakeBackend):
    """One that tells when it is retired."""

    retired: list[FakeBackend]

    def retire(self) -> None:
        type(self).retired.append(self)
        raise RuntimeError("what it raises harms nobody")


def retiring(*, fails: bool = False) -> type[Retiring]:
    def load(backend: FakeBackend) -> None:
        if fails:
            raise Internal("it cannot")

    return type("TestBackend", (Retiring,), {"made": [], "batches": [], "retired": [], "on_load": staticmethod(load)})


async def test_an_instance_is_retired_once_when_it_is_over(autojump_clock: MockClock) -> None:
    """Not where it is started anew: what it has kept is for the next one."""
    backend = retiring()
    served = model(backend)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        await worked(served)
        backend.made[0].die()
        await wait_all_tasks_blocked()
        assert served.is_ready
        assert backend.retired == []
        served.drain()
    assert backend.retired == [backend.made[1]]
    assert [each.unloads for each in backend.made] == [1, 1]


async def test_one_that_is_over_before_it_is_started_anew_is_retired(autojump_clock: MockClock) -> None:
    backend = retiring()
    served = model(backend)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        backend.made[0].die()  # without work, so that the next start is put off
        await wait_all_tasks_blocked()
        served.drain()
    assert backend.retired == [backend.made[-1]]


async def test_one_that_has_failed_to_load_is_retired() -> None:
    backend = retiring(fails=True)
    with pytest.raises(Internal, match="it cannot"):
        await model(backend).run()
    assert backend.retired == backend.made
