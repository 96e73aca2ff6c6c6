"""The scheduler and its instances in random schedules under virtual time: arrivals, clients that go away, slow, failing
and dying backends, queue policies, batches ahead of time, order kept, resources shared.

`TRIOTON_RANDOM_SCHEDULES` sets how many schedules are tried.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio
from msgspec.structs import replace

from actors.instance.rate_limit_policy import RateLimitResource
from actors.instance.rate_limiter import ModelLimits, RateLimiter
from actors.metrics.statistics import FailureReason
from actors.model.model import Model
from backends.interface import Backend, BatchResult, InstanceSpec, Started
from protocol.errors import Internal, InvalidArgument, ServerError
from protocol.messages import InferenceRequest, InferenceResponse
from repository.model_config import (
    ModelConfig,
    ModelDynamicBatching,
    ModelOptimizationPolicy,
    ModelQueuePolicy,
    ModelRateLimiter,
    RateLimiterResource,
)
from tests.actors.fakes import CONFIG, TIMING, FakeBackendOfTasks, request, spec
from tests.actors.random_schedules import MOST_SECONDS, run_schedules, schedule_count

SCHEDULES = schedule_count(100)


@dataclass(slots=True)
class Call:
    """One request and its fate: when it came, when and how its caller went on."""

    id: str
    arrived: float
    ended: float = -1.0
    outcome: str = ""


class Schedule:
    """One model, its callers and its troubles, all from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.is_ordered = rng.random() < 0.4
        self.can_die = rng.random() < 0.3
        self.begins = rng.random() < 0.5  # its backend begins batches by a call
        self.executed: Counter[str] = Counter()
        self.calls: list[Call] = []
        policy = ModelQueuePolicy(
            default_timeout_microseconds=rng.choice([0, 0, 500_000, 5_000_000]), max_queue_size=rng.choice([0, 0, 3])
        )
        levels = 0 if self.is_ordered else rng.choice([0, 0, 3])
        self.config: ModelConfig = replace(
            CONFIG,
            dynamic_batching=ModelDynamicBatching(
                preferred_batch_size=rng.choice([(), (2,), (4,)]),
                max_queue_delay_microseconds=rng.choice([0, 0, 300_000]),
                preserve_ordering=self.is_ordered,
                priority_levels=levels,
                default_priority_level=levels,
                default_queue_policy=policy,
            ),
            optimization=ModelOptimizationPolicy(eager_batching=rng.random() < 0.3),
        )
        instances = rng.randint(1, 3)
        specs = [spec(self.config, name=f"m_{number}") for number in range(instances)]
        self.limiter = RateLimiter([RateLimitResource("R", 2)])
        needs = {
            each.name: ModelRateLimiter((RateLimiterResource("R", count=rng.randint(1, 2)),), rng.randint(1, 3))
            for each in specs
        }
        limits = ModelLimits(self.limiter, needs) if rng.random() < 0.3 else None
        self.model = Model(self.config, 1, self.backend(ahead=rng.random() < 0.6), specs, limits=limits)

    def backend(self, *, ahead: bool) -> type[Backend]:
        schedule = self

        class Troubled(FakeBackendOfTasks):
            """Takes one batch after the other, each for a while; some fail, and it may die in one."""

            can_run_ahead = ahead
            made = []  # noqa: RUF012 (of this class alone)

            def __init__(self, spec: InstanceSpec) -> None:
                super().__init__(spec)
                self.lock = trio.StrictFIFOLock()

            def begin(
                self,
                requests: Sequence[InferenceRequest],
                done: Callable[[BatchResult | Exception], None],
                free: Callable[[], None] | None = None,
            ) -> BatchResult | Started | None:
                """A batch is left alone, begun, or computed; or that is a defect."""
                how = schedule.rng.random()
                if not schedule.begins or how < 0.2:
                    return None
                if how < 0.25:
                    raise KeyError("a defect")
                if how < 0.6:
                    return self.compute(requests)
                return self.begin_in_task(requests, done)

            async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
                async with self.lock:
                    await trio.sleep(schedule.rng.choice([0.0, 0.1, 1.0]))
                    return self.compute(requests)

            def compute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
                schedule.executed.update(item.id for item in requests)
                trouble = schedule.rng.random()
                if trouble < 0.1:
                    raise InvalidArgument("all of them are wrong")
                if trouble < 0.15 and schedule.can_die:
                    raise self.die()
                return BatchResult([self.answer(item) for item in requests], TIMING)

            def answer(self, item: InferenceRequest) -> InferenceResponse | ServerError:
                if schedule.rng.random() < 0.1:
                    return Internal("this one is wrong")
                return InferenceResponse("m", 1, [], item.id)

        return Troubled

    async def call(self, call: Call, patience: float) -> None:
        asked = request(self.rng.randint(1, 4), id=call.id)
        asked.priority = self.rng.randint(0, 3)
        with trio.move_on_after(patience) as waiting:
            try:
                response = await self.model.infer(asked)
                assert response.id == call.id, "somebody else's answer"
                call.outcome = "answered"
            except ServerError as error:
                call.outcome = error.message
        if waiting.cancelled_caught:
            call.outcome = "gave up"
        call.ended = trio.current_time()

    async def run(self) -> None:
        rng = self.rng
        with trio.fail_after(MOST_SECONDS):
            async with trio.open_nursery() as nursery:
                await nursery.start(self.model.run)
                async with trio.open_nursery() as clients:
                    for number in range(rng.randint(1, 40)):
                        call = Call(str(number), trio.current_time())
                        self.calls.append(call)
                        patience = rng.choice([0.0, 0.2, 2.0]) if rng.random() < 0.2 else MOST_SECONDS
                        clients.start_soon(self.call, call, patience)
                        await trio.sleep(rng.choice([0.0, 0.0, 0.05, 0.5]))
                    if rng.random() < 0.2:
                        self.model.drain()
                self.model.drain()

    def check(self) -> None:
        assert all(call.outcome for call in self.calls), "somebody was forgotten"
        assert all(count == 1 for count in self.executed.values()), "a request ran twice"
        answered = [call for call in self.calls if call.outcome == "answered"]
        assert all(self.executed[call.id] for call in answered)
        statistics = self.model.statistics
        successes = statistics.frozen("m", 1).inference_stats.success.count
        gave_up = sum(call.outcome == "gave up" for call in self.calls)  # some just when their answer came
        assert len(answered) <= successes <= len(answered) + gave_up
        refused = sum(
            call.outcome == "Request timeout expired" or call.outcome.endswith("Exceeds maximum queue size")
            for call in self.calls
        )
        assert refused <= statistics.failures[FailureReason.REJECTED] <= refused + gave_up
        assert self.model.pending_count == 0
        assert self.limiter.free(("R", 0)) == 2, "somebody holds what he does not use"
        if self.is_ordered:
            ends = [call.ended for call in answered]
            assert ends == sorted(ends), "out of order"


def test_in_random_schedules_everybody_is_answered_once() -> None:
    run_schedules(SCHEDULES, check)


async def check(seed: int) -> None:
    schedule = Schedule(seed)
    await schedule.run()
    schedule.check()
