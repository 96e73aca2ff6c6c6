"""Steps whose models refuse a request, or let it wait too long in their queue: real models, under virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.ensemble.ensemble import Ensemble
from actors.metrics.statistics import FailureReason
from actors.model.model import Model
from protocol.errors import Unavailable
from protocol.messages import InferenceRequest
from repository.pbtxt import parse_pbtxt
from tests.actors.ensemble.ensembles import ensemble, ensemble_config, request, serving, step
from tests.actors.fakes import CONFIG, fake_backend, spec

TIMEOUT = "default_queue_policy { default_timeout_microseconds: 1000000 allow_timeout_override: true }"


def row(id: str = "", *, timeout_microseconds: int = 0) -> InferenceRequest:
    asked = request(id, IN=np.full((1, 2), 3, np.float32))
    asked.timeout_microseconds = timeout_microseconds
    return asked


@asynccontextmanager
async def queueing(policy: str, seconds: float) -> AsyncIterator[Ensemble]:
    """An ensemble of a real model with this queue policy; one of its requests runs, for so long."""
    composing = Model(
        msgspec.structs.replace(
            CONFIG, dynamic_batching=parse_pbtxt(f"dynamic_batching {{ {policy} }}", source="test").dynamic_batching
        ),
        1,
        fake_backend(seconds=seconds),
        [spec()],
    )
    config = ensemble_config(
        step("m", "IN=IN", "OUT=OUT"), inputs=["IN:FP32:2"], outputs=["OUT:FP32:2"], max_batch_size=4
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(composing.run)
        made = ensemble(config, composing)
        await nursery.start(made.run)
        nursery.start_soon(made.infer, row())
        await wait_all_tasks_blocked()
        yield made
        made.drain()
        composing.drain()


async def test_a_full_queue_of_a_step_has_its_own_text_and_kind(autojump_clock: MockClock) -> None:
    async with queueing("default_queue_policy { max_queue_size: 1 }", 10) as model:
        async with trio.open_nursery() as calls:
            calls.start_soon(model.infer, row())
            await wait_all_tasks_blocked()
            with pytest.raises(Unavailable) as caught:
                await model.infer(row("r"))
        assert caught.value.message == (
            "in ensemble 'e', [request id: r] Exceeds maximum queue size (step 0, model 'm')"
        )
        assert model.statistics.failures[FailureReason.OTHER] == 1


@pytest.mark.parametrize("timeout_microseconds", [0, 500_000, 5_000_000])
async def test_a_timeout_in_the_queue_of_a_step_has_its_own_text_and_kind(
    autojump_clock: MockClock, timeout_microseconds: int
) -> None:
    """The request's own `timeout` is the queue's to take, and no deadline of the ensemble's cuts it short."""
    async with queueing(TIMEOUT, 10) as model:
        with pytest.raises(Unavailable) as caught:
            await model.infer(row(timeout_microseconds=timeout_microseconds))
        assert caught.value.message == "in ensemble 'e', Request timeout expired (step 0, model 'm')"
        assert trio.current_time() == (timeout_microseconds / 1e6 if timeout_microseconds == 500_000 else 1)
        assert {why: count for why, count in model.statistics.failures.items() if count} == {FailureReason.OTHER: 1}


async def test_the_queue_of_an_inner_ensembles_step_takes_the_timeout_too(autojump_clock: MockClock) -> None:
    outer = ensemble_config(
        step("e", "IN=IN", "OUT=OUT"), inputs=["IN:FP32:2"], outputs=["OUT:FP32:2"], max_batch_size=4, name="outer"
    )
    async with queueing(TIMEOUT, 10) as inner, serving(outer, inner) as model:
        with pytest.raises(Unavailable, match="in ensemble 'outer', in ensemble 'e', Request timeout expired"):
            await model.infer(row(timeout_microseconds=500_000))
