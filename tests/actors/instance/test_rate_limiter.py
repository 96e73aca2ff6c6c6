"""The rate limiter between model instances, under virtual time: waiting, giving back, cancellation, death."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.instance.rate_limit_policy import Claim, RateLimitResource
from actors.instance.rate_limiter import InstanceLimit, ModelLimits, RateLimiter
from actors.metrics.statistics import FailureReason
from actors.model.model import Model
from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest
from repository.model_config import ModelRateLimiter, RateLimiterResource
from tests.actors.fakes import CONFIG, FakeBackend, fake_backend, request, spec

ONE = ModelRateLimiter((RateLimiterResource("R", count=1),))


def model(
    backend: type[FakeBackend], limiter: RateLimiter, *, instances: int = 1, needs: ModelRateLimiter = ONE
) -> Model:
    names = [f"m_{number}" for number in range(instances)]
    return Model(
        CONFIG,
        1,
        backend,
        [spec(name=name) for name in names],
        limits=ModelLimits(limiter, dict.fromkeys(names, needs)),
    )


async def test_instances_that_share_a_resource_run_one_after_the_other(autojump_clock: MockClock) -> None:
    """Two models of two instances each; the queue time includes the wait."""
    limiter = RateLimiter()
    models = [model(fake_backend(seconds=1), limiter, instances=2) for _ in range(2)]
    async with trio.open_nursery() as nursery:
        for served in models:
            await nursery.start(served.run)
        async with trio.open_nursery() as calls:
            for served in models:
                calls.start_soon(served.infer, request(4))
                calls.start_soon(served.infer, request(4))
        assert trio.current_time() == 4
        for served in models:
            served.drain()
    queued = sum(served.statistics.frozen("m", 1).inference_stats.queue.ns for served in models)
    assert queued == pytest.approx((0 + 1 + 2 + 3) * 1e9)


async def test_with_two_units_two_run_at_a_time(autojump_clock: MockClock) -> None:
    served = model(fake_backend(seconds=1), RateLimiter([RateLimitResource("R", 2)]), instances=4)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        async with trio.open_nursery() as calls:
            for _ in range(4):
                calls.start_soon(served.infer, request(4))
        assert trio.current_time() == 2
        served.drain()


async def test_a_request_given_up_while_its_batch_waits_is_not_run(autojump_clock: MockClock) -> None:
    limiter = RateLimiter()
    backend = fake_backend(seconds=5)
    served = model(backend, limiter, instances=2)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        nursery.start_soon(served.infer, request(4, id="runs"))
        await wait_all_tasks_blocked()
        with trio.move_on_after(1):
            await served.infer(request(4, id="gone"))
        assert (await served.infer(request(4, id="next"))).id == "next"
        served.drain()
    assert backend.batches == [["runs"], ["next"]]
    assert served.statistics.failures[FailureReason.CANCELED] == 1


async def test_a_batch_that_fails_gives_back_what_it_held(autojump_clock: MockClock) -> None:
    def fail_first(backend: FakeBackend, requests: Sequence[InferenceRequest]) -> None:
        if requests[0].id == "bad":
            raise ValueError("no")

    served = model(fake_backend(on_execute=fail_first), RateLimiter(), instances=2)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        for _ in range(3):
            with pytest.raises(Exception, match="no"):
                await served.infer(request(id="bad"))
        assert (await served.infer(request(id="good"))).id == "good"
        served.drain()


async def test_an_instance_that_dies_gives_back_what_it_held(autojump_clock: MockClock) -> None:
    def die(backend: FakeBackend, requests: Sequence[InferenceRequest]) -> None:
        if requests[0].id == "deadly":
            raise backend.die()

    limiter = RateLimiter()
    mortal, other = (model(fake_backend(seconds=1, on_execute=die), limiter) for _ in range(2))
    async with trio.open_nursery() as nursery:
        await nursery.start(mortal.run)
        await nursery.start(other.run)
        with pytest.raises(Exception, match="died"):
            await mortal.infer(request(id="deadly"))
        assert (await other.infer(request(id="r"))).id == "r"
        await trio.sleep(5)
        assert (await mortal.infer(request(id="alive"))).id == "alive"
        for served in (mortal, other):
            served.drain()


async def test_a_drain_finishes_what_waits(autojump_clock: MockClock) -> None:
    served = model(fake_backend(seconds=1), RateLimiter(), instances=2)
    answered: list[str] = []

    async def call(id: str) -> None:
        answered.append((await served.infer(request(4, id=id))).id)

    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        for id in ("a", "b", "c"):
            nursery.start_soon(call, id)
        await wait_all_tasks_blocked()
        served.drain()
    assert sorted(answered) == ["a", "b", "c"]


async def test_a_load_that_could_never_run_is_refused(autojump_clock: MockClock) -> None:
    """And leaves nothing behind that counts."""
    limiter = RateLimiter([RateLimitResource("R", 1)])
    backend = fake_backend()
    with pytest.raises(InvalidArgument, match='Resource count for "R" is limited to 1'):
        await model(backend, limiter, needs=ModelRateLimiter((RateLimiterResource("R", count=2),))).run()
    served = model(fake_backend(), limiter)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        await served.infer(request())
        served.drain()


async def test_an_unloaded_model_does_not_set_the_count_any_more(autojump_clock: MockClock) -> None:
    limiter = RateLimiter()
    needy = model(fake_backend(), limiter, needs=ModelRateLimiter((RateLimiterResource("R", count=2),)))
    served = model(fake_backend(seconds=1), limiter, instances=2)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        async with trio.open_nursery() as loaded:
            await loaded.start(needy.run)
            async with trio.open_nursery() as calls:
                for _ in range(2):
                    calls.start_soon(served.infer, request(4))
            assert trio.current_time() == 1
            needy.drain()
        async with trio.open_nursery() as calls:
            for _ in range(2):
                calls.start_soon(served.infer, request(4))
        assert trio.current_time() == 3
        served.drain()


async def test_one_cancelled_in_the_moment_of_its_grant_holds_nothing() -> None:
    limiter = RateLimiter()
    first, second = (Claim(name, 1, {("R", 0): 1}) for name in "ab")
    for claim in (first, second):
        limiter.register(claim)
    await limiter.acquire(first)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limiter.acquire, second)
            await wait_all_tasks_blocked()
            scope.cancel()
            limiter.release(first)  # grants it to the second, whose wait has ended already
    async with InstanceLimit(limiter, first):
        pass


async def test_an_instance_without_needs_is_not_limited() -> None:
    limits = ModelLimits(RateLimiter(), {"a": ModelRateLimiter(priority=3)})
    assert limits.of_instance("a", 0) is None
    assert limits.of_instance("other", 0) is None


async def _runs_in(
    seconds: float, *priorities: int, requests: int, instances: int = 1, needs: int = 1, units: int | None = None
) -> list[int]:
    """How many batches models of these priorities run, with so many requests in each queue always."""
    limiter = RateLimiter() if units is None else RateLimiter([RateLimitResource("R", units)])
    backends = [fake_backend(seconds=1) for _ in priorities]
    async with trio.open_nursery() as nursery:
        models = [
            model(
                backend,
                limiter,
                instances=instances,
                needs=ModelRateLimiter((RateLimiterResource("R", count=needs),), priority),
            )
            for backend, priority in zip(backends, priorities, strict=True)
        ]
        for served in models:
            await nursery.start(served.run)

        async def ask(served: Model) -> None:
            while True:
                await served.infer(request(4))

        with trio.move_on_after(seconds):
            async with trio.open_nursery() as calls:
                for served in models:
                    for _ in range(requests):
                        calls.start_soon(ask, served)
        for served in models:
            served.drain()
    return [len(backend.batches) for backend in backends]


@pytest.mark.parametrize(
    ("priorities", "expected"),
    [((1, 1), (60, 60)), ((1, 2), (80, 40)), ((1, 2, 3), (66, 33, 22)), ((1, 5), (100, 20))],
)
async def test_models_run_as_often_as_their_priorities_say(
    autojump_clock: MockClock, priorities: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert await _runs_in(120.5, *priorities, requests=3) == pytest.approx(expected, abs=2)


async def test_instances_of_several_models_run_as_often_as_their_priorities_say(autojump_clock: MockClock) -> None:
    assert await _runs_in(60.5, 1, 2, requests=6, instances=2, units=2) == pytest.approx((80, 40), abs=3)
    assert await _runs_in(60.5, 1, 2, requests=6, instances=2, units=1) == pytest.approx((40, 20), abs=3)


async def test_one_cancelled_while_it_waits_for_its_next_turn_holds_nothing() -> None:
    limiter = RateLimiter()
    first, second = (Claim(name, 1, {("R", 0): 1}) for name in "ab")
    for claim in (first, second):
        limiter.register(claim)
    limit = InstanceLimit(limiter, first)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(limiter.acquire, second)
        with trio.CancelScope() as scope:
            async with limit:
                await wait_all_tasks_blocked()  # the second waits now, for longer than the first will
                nursery.start_soon(_cancel_when_all_wait, scope)
                await limit.renew()
    assert scope.cancelled_caught
    limiter.release(second)
    for claim in (first, second):
        async with InstanceLimit(limiter, claim):
            pass


async def _cancel_when_all_wait(scope: trio.CancelScope) -> None:
    await wait_all_tasks_blocked()
    scope.cancel()
