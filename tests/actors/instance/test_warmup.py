"""Warm-up of model instances: what runs, when, and what a failure does."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
import trio
from trio.testing import MockClock

from actors.instance.warmup import warm_up
from actors.model.model import Model
from backends.interface import BatchTiming, Rescheduled, Responder
from protocol.errors import Internal, InvalidArgument
from protocol.messages import InferenceRequest, InferenceResponse
from repository.model_config import ModelConfig, ModelTransactionPolicy
from repository.warmup_data import WarmupSample
from tests.actors.fakes import CONFIG, TIMING, FakeBackend, fake_backend, request, spec, tensor

SAMPLES = (
    WarmupSample("first", batch_size=2, count=1, tensors=(tensor(),)),
    WarmupSample("second", batch_size=1, count=3, tensors=(tensor(),)),
)


async def test_every_instance_runs_all_samples_before_the_model_is_ready(autojump_clock: MockClock) -> None:
    """And nothing of it is counted."""
    backend = fake_backend(seconds=1)
    served = Model(CONFIG, 1, backend, [spec(name="m_0"), spec(name="m_1")], warmup=SAMPLES)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        assert trio.current_time() == 4, "four executions of a second on each, side by side"
        assert sorted(map(len, backend.batches)) == [1, 1, 1, 1, 1, 1, 2, 2]
        assert served.is_ready
        await served.infer(request())
        served.drain()
    statistics = served.statistics.frozen("m", 1)
    assert (statistics.inference_count, statistics.execution_count) == (1, 1)


async def test_a_model_without_a_batch_dimension_takes_one_request_at_a_time() -> None:
    config = msgspec.structs.replace(CONFIG, max_batch_size=0, dynamic_batching=None)
    backend = fake_backend()
    await warm_up(backend(spec(config)), SAMPLES)
    assert [len(batch) for batch in backend.batches] == [1, 1, 1, 1, 1]


async def test_a_failure_fails_the_load_and_names_every_sample_that_failed() -> None:
    def fail(backend: FakeBackend, requests: Sequence[InferenceRequest]) -> None:
        if len(requests) == 2:
            raise InvalidArgument("two is too many")
        raise ZeroDivisionError("oh")

    backend = fake_backend(on_execute=fail)
    served = Model(CONFIG, 1, backend, [spec()], warmup=SAMPLES)
    with pytest.raises(InvalidArgument) as caught:
        await served.run()
    assert caught.value.message == (
        "failed to run warmup sample 'first': two is too many; "
        "failed to run warmup sample 'second': ZeroDivisionError: oh; "
    )
    assert [made.unloads for made in backend.made] == [1]


async def test_a_death_in_warm_up_fails_the_load() -> None:
    def die(backend: FakeBackend, requests: Sequence[InferenceRequest]) -> None:
        raise backend.die()

    served = Model(CONFIG, 1, fake_backend(on_execute=die), [spec()], warmup=SAMPLES)
    with pytest.raises(Exception, match="failed to run warmup sample 'first': the worker has died"):
        await served.run()


async def test_an_instance_that_is_started_again_warms_up_again(autojump_clock: MockClock) -> None:
    backend = fake_backend()
    served = Model(CONFIG, 1, backend, [spec()], warmup=SAMPLES[:1])
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        backend.made[0].die()
        await trio.sleep(5)
        assert served.is_ready
        assert [len(batch) for batch in backend.batches] == [2, 2]
        served.drain()


class Decoupled(FakeBackend):
    """Replies twice, the last time after a while; or ends as its class says."""

    can_be_decoupled = True
    error: Internal | None = None
    dies: bool = False

    async def execute_decoupled(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder]
    ) -> BatchTiming:
        assert not any(responder.is_cancelled for responder in responders)
        for responder in responders:
            await responder.send(InferenceResponse("m", 1, [], is_final=False))
        self.finish(responders)
        return TIMING

    def finish(self, responders: Sequence[Responder]) -> None:
        async def later() -> None:
            await trio.sleep(3)
            if self.dies:
                self.die()
                return
            for responder in responders:
                responder.close(self.error)

        trio.lowlevel.spawn_system_task(later)


def decoupled_config() -> ModelConfig:
    return msgspec.structs.replace(
        CONFIG, dynamic_batching=None, model_transaction_policy=ModelTransactionPolicy(decoupled=True)
    )


@pytest.mark.parametrize(
    ("error", "dies", "expected"),
    [
        (None, False, None),
        (Rescheduled(), False, None),
        (Internal("no"), False, "failed to run warmup sample 's': no; "),
        (None, True, "failed to run warmup sample 's': model instance 'm_0' has died; "),
    ],
)
async def test_a_decoupled_model_is_warm_when_its_last_answer_is_there(
    autojump_clock: MockClock, error: Internal | None, dies: bool, expected: str | None
) -> None:
    backend = type("TestBackend", (Decoupled,), {"error": error, "dies": dies, "made": []})
    sample = WarmupSample("s", batch_size=2, count=1, tensors=(tensor(),))
    raised: str | None = None
    try:
        await warm_up(backend(spec(decoupled_config())), [sample])
    except Exception as caught:
        raised = str(caught)
    assert raised == expected
    assert trio.current_time() == 3
