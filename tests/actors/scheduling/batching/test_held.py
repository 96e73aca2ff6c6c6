"""A scheduler that waits until so many requests are queued, as Triton's debugging variable has it."""

from __future__ import annotations

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.model.model import Model
from actors.scheduling.batching.held import SchedulerHold
from protocol.errors import Unavailable
from repository.model_config import ModelConfig, ModelDynamicBatching, ModelQueuePolicy
from tests.actors.fakes import CONFIG, fake_backend, request, spec


def held(backend: object, count: int, config: ModelConfig = CONFIG) -> Model:
    return Model(config, 1, backend, [spec()], hold=SchedulerHold(count))  # type: ignore[arg-type]  # a fake


async def test_nothing_runs_before_so_many_requests_wait(autojump_clock: MockClock) -> None:
    backend = fake_backend(seconds=1)
    model = held(backend, 3)
    async with trio.open_nursery() as nursery:
        await nursery.start(model.run)
        async with trio.open_nursery() as calls:
            for id in "ab":
                calls.start_soon(model.infer, request(id=id))
            await trio.sleep(100)
            assert backend.batches == []
            calls.start_soon(model.infer, request(id="c"))
        assert [sorted(batch) for batch in backend.batches] == [["a", "b", "c"]]
        await model.infer(request(id="d"))
        assert backend.batches[1:] == [["d"]], "it holds nothing any more"
        model.drain()


async def test_a_delay_that_is_over_does_not_keep_a_held_scheduler_awake(autojump_clock: MockClock) -> None:
    config = msgspec.structs.replace(
        CONFIG,
        dynamic_batching=ModelDynamicBatching(
            max_queue_delay_microseconds=1000,
            default_queue_policy=ModelQueuePolicy(default_timeout_microseconds=5_000_000),
        ),
    )
    model = held(fake_backend(), 2, config)
    async with trio.open_nursery() as nursery:
        await nursery.start(model.run)
        with pytest.raises(Unavailable, match="Request timeout expired"):  # virtual time goes on: nobody spins
            await model.infer(request(id="a"))
        assert trio.current_time() == 5
        model.drain()


async def test_requests_that_have_gone_do_not_count(autojump_clock: MockClock) -> None:
    backend = fake_backend()
    model = held(backend, 2)
    async with trio.open_nursery() as nursery:
        await nursery.start(model.run)
        with trio.move_on_after(1):
            await model.infer(request(id="gone"))
        nursery.start_soon(model.infer, request(id="a"))
        await wait_all_tasks_blocked()
        assert backend.batches == []
        await model.infer(request(id="b"))
        assert backend.batches == [["a", "b"]]
        model.drain()


async def test_the_default_scheduler_is_not_held(autojump_clock: MockClock) -> None:
    """As Triton's is not."""
    model = held(fake_backend(), 5, msgspec.structs.replace(CONFIG, dynamic_batching=None))
    async with trio.open_nursery() as nursery:
        await nursery.start(model.run)
        assert (await model.infer(request(id="a"))).id == "a"
        model.drain()
