"""One model version: load, failure to load, death, restart, cancellation, drain; under virtual time."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace

import pytest
import trio
from msgspec.structs import replace as changed
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.metrics.statistics import FailureReason
from actors.model.model import Model
from protocol.datatypes import DataType
from protocol.errors import Internal, InvalidArgument, Unavailable
from protocol.messages import InferenceRequest, Tensor
from repository.model_config import ModelInput
from tests.actors.fakes import CONFIG, FakeBackend, fake_backend, request, spec


def model(backend: type[FakeBackend], *, instances: int = 1) -> Model:
    return Model(CONFIG, 1, backend, [spec(name=f"m_{number}") for number in range(instances)])


async def test_it_answers_and_counts(autojump_clock: MockClock) -> None:
    served = model(fake_backend(seconds=0.5))
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        assert served.is_ready
        response = await served.infer(request(3, id="r", value=7))
        assert response.id == "r"
        assert response.outputs[0].as_numpy().tolist() == [[7, 7]] * 3
        served.drain()
    assert not served.is_ready
    statistics = served.statistics.frozen("m", 1)
    assert (statistics.inference_count, statistics.execution_count) == (3, 1)
    assert statistics.inference_stats.success.count == 1
    assert statistics.inference_stats.success.ns == pytest.approx(5e8)
    assert statistics.inference_stats.compute_infer.ns == 2
    assert [(batch.batch_size, batch.compute_input.count) for batch in statistics.batch_stats] == [(3, 1)]
    assert statistics.last_inference > 0
    with pytest.raises(Unavailable):
        await served.infer(request())


async def test_a_failed_load_is_one_plain_error_and_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    def fail_second(backend: FakeBackend) -> None:
        if backend.spec.name == "m_1":
            raise InvalidArgument("no such file")

    backend = fake_backend(on_load=fail_second)
    with pytest.raises(InvalidArgument, match="no such file"):
        await model(backend, instances=3).run()
    assert [made.unloads for made in backend.made] == [1, 1, 1]


async def test_an_unknown_exception_of_a_load_is_named(autojump_clock: MockClock) -> None:
    def fail(backend: FakeBackend) -> None:
        raise ZeroDivisionError("oh")

    with pytest.raises(Internal, match="ZeroDivisionError: oh"):
        await model(fake_backend(on_load=fail)).run()


async def test_a_bad_batch_fails_its_requests_and_the_instance_goes_on(autojump_clock: MockClock) -> None:
    def fail_on_seven(backend: FakeBackend, requests: Sequence[InferenceRequest]) -> None:
        if requests[0].id == "bad":
            raise ValueError("seven")

    served = model(fake_backend(on_execute=fail_on_seven))
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        with pytest.raises(Internal, match="model instance 'm_0' failed: ValueError: seven"):
            await served.infer(request(id="bad"))
        assert (await served.infer(request(id="good"))).id == "good"
        served.drain()
    assert served.statistics.failures[FailureReason.BACKEND] == 1


async def test_a_death_fails_its_batch_and_the_queue_then_the_instance_comes_back(autojump_clock: MockClock) -> None:
    def die_once(backend: FakeBackend, requests: Sequence[InferenceRequest]) -> None:
        if len(type(backend).made) == 1:
            raise backend.die()

    backend = fake_backend(seconds=1, on_execute=die_once)
    served = model(backend)
    failures: list[str] = []

    async def call(rows: int) -> None:
        with pytest.raises(Unavailable) as caught:
            await served.infer(request(rows))
        failures.append(caught.value.message)

    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        async with trio.open_nursery() as calls:
            calls.start_soon(call, 4)
            await wait_all_tasks_blocked()
            calls.start_soon(call, 4)
        assert sorted(failures) == [
            "model 'm' is not ready: all of its instances have stopped and are restarting",
            "the worker has died",
        ]
        assert not served.is_ready
        with pytest.raises(Unavailable, match="is not ready"):
            await served.infer(request())
        await trio.sleep(1)  # the first back-off is half a second
        assert served.is_ready
        assert (await served.infer(request(id="again"))).id == "again"
        served.drain()
    assert [made.unloads for made in backend.made] == [1, 1]


async def test_a_death_while_idle_is_noticed(autojump_clock: MockClock) -> None:
    backend = fake_backend()
    served = model(backend, instances=2)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        backend.made[0].die()
        await wait_all_tasks_blocked()
        assert not served.is_ready
        assert (await served.infer(request(id="other instance"))).id == "other instance"
        await trio.sleep(1)
        assert served.is_ready
        served.drain()


async def test_a_drain_does_not_wait_for_an_instance_that_cannot_start_again(autojump_clock: MockClock) -> None:
    def fail_again(backend: FakeBackend) -> None:
        if len(type(backend).made) > 1:
            raise InvalidArgument("gone")

    backend = fake_backend(on_load=fail_again)
    served = model(backend)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        backend.made[0].die()
        await trio.sleep(100)
        assert 3 < len(backend.made) < 12, "it tries again, ever more slowly"
        served.drain()


async def test_a_cancelled_caller_leaves_the_instance_serving(autojump_clock: MockClock) -> None:
    served = model(fake_backend(seconds=10))
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        with trio.move_on_after(1):
            await served.infer(request(id="gone"))
        assert (await served.infer(request(id="next"))).id == "next"
        served.drain()
    assert served.statistics.failures[FailureReason.CANCELED] == 1
    assert served.statistics.frozen("m", 1).inference_stats.success.count == 1


async def test_a_passive_instance_is_loaded_and_gets_nothing(autojump_clock: MockClock) -> None:
    """It is unloaded with the others, and started again when it has died; neither changes readiness."""
    backend = fake_backend(seconds=1)
    specs = [spec(name="active"), replace(spec(name="passive"), is_passive=True)]
    async with trio.open_nursery() as nursery:
        model = Model(CONFIG, 1, backend, specs)
        await nursery.start(model.run)
        await wait_all_tasks_blocked()
        assert model.is_ready
        async with trio.open_nursery() as callers:
            for number in range(8):
                callers.start_soon(model.infer, request(4, id=str(number)))
        assert trio.current_time() >= 8  # one after the other
        next(made for made in backend.made if made.spec.is_passive).died.set()
        await wait_all_tasks_blocked()
        assert model.is_ready
        await trio.sleep(1)
        assert sorted(made.spec.name for made in backend.made) == ["active", "passive", "passive"]
        model.drain()
    assert [made.unloads for made in backend.made] == [1, 1, 1]


@pytest.mark.slow
async def test_the_loop_turns_while_many_texts_are_looked_at(autojump_clock: MockClock) -> None:
    texts = ModelInput(name="IN", data_type=DataType.BYTES, dims=(-1,))
    served = Model(
        changed(CONFIG, input=(texts,), max_batch_size=0, dynamic_batching=None), 1, fake_backend(), [spec()]
    )
    count, turns = 1 << 19, 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        nursery.start_soon(turn)
        tensor = Tensor("IN", DataType.BYTES, (count,), bytes(4 * count))
        response = await served.infer(InferenceRequest("m", [tensor]))
        assert response.outputs[0].byte_size == 4 * count
        assert turns > 20
        wrong = Tensor("IN", DataType.BYTES, (count,), bytes(4 * count - 4) + b"\1\0\0\0")
        with pytest.raises(InvalidArgument, match="expecting string of length 1 but only 0 bytes available"):
            await served.infer(InferenceRequest("m", [wrong]))
        nursery.cancel_scope.cancel()


async def test_requests_leave_no_circles(autojump_clock: MockClock) -> None:
    """Their tensors are free with the answer, and not when garbage is looked for."""
    served = model(fake_backend())
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(3):
                await served.infer(request(2))
            gc.collect()
            left = {type(found).__name__ for found in gc.garbage}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
        served.drain()
    assert not left & {"QueuedRequest", "InferenceRequest", "InferenceResponse", "Tensor"}
