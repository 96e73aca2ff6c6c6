"""A sequence batcher that waits until so many requests are queued, as Triton's debugging variables have it."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.model.model import Model
from actors.scheduling.batching.held import SchedulerHold
from protocol.messages import InferenceRequest
from repository.model_config import ModelConfig, StrategyOldest
from tests.actors.fakes import fake_backend, spec
from tests.actors.fakes import request as plain
from tests.actors.scheduling.sequence.sequences import config


def asked(sequence: int, number: int, *, of: int) -> InferenceRequest:
    made = plain(id=f"{sequence}:{number}")
    made.sequence_id, made.sequence_start, made.sequence_end = sequence, number == 0, number == of - 1
    return made


@pytest.mark.parametrize("oldest", [None, StrategyOldest(max_candidate_sequences=2, max_queue_delay_microseconds=1)])
async def test_nothing_runs_before_so_many_requests_of_sequences_wait(
    autojump_clock: MockClock, oldest: StrategyOldest | None
) -> None:
    """Two sequences of two requests; of candidates for a batch there are as many as sequences."""
    hold = SchedulerHold(4 if oldest is None else 2)
    backend = fake_backend(seconds=1)
    model = Model(config(max_batch_size=2, oldest=oldest), 1, backend, [spec()], hold=hold)
    async with trio.open_nursery() as nursery:
        await nursery.start(model.run)
        async with trio.open_nursery() as calls:
            calls.start_soon(model.infer, asked(1, 0, of=2))
            await wait_all_tasks_blocked()
            calls.start_soon(model.infer, asked(1, 1, of=2))
            await wait_all_tasks_blocked()
            if oldest is None:
                calls.start_soon(model.infer, asked(2, 0, of=2))
                await wait_all_tasks_blocked()
            await trio.sleep(100)
            assert backend.batches == []
            calls.start_soon(model.infer, asked(2, 1 if oldest is None else 0, of=2))
        assert [sorted(batch) for batch in backend.batches[:1]] == [["1:0", "2:0"]]
        model.drain()


def of_one_slot() -> ModelConfig:
    return config(max_batch_size=1)


async def test_nothing_runs_before_so_many_requests_wait_in_the_backlog(autojump_clock: MockClock) -> None:
    backend = fake_backend(seconds=1)
    model = Model(of_one_slot(), 1, backend, [spec()], hold=SchedulerHold(1, 2))
    async with trio.open_nursery() as nursery:
        await nursery.start(model.run)
        async with trio.open_nursery() as calls:
            for sequence in (1, 2):
                calls.start_soon(model.infer, asked(sequence, 0, of=1))
                await wait_all_tasks_blocked()
            await trio.sleep(100)
            assert backend.batches == []
            calls.start_soon(model.infer, asked(3, 0, of=1))
        assert backend.batches == [["1:0"], ["2:0"], ["3:0"]]
        model.drain()
