"""The rate limiter's rules: by tables, and by random schedules against what must always hold."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from actors.instance.rate_limit_policy import (
    MOST_PASSES,
    Claim,
    Pool,
    RateLimitPolicy,
    RateLimitResource,
    make_claim,
)
from protocol.errors import InvalidArgument
from repository.model_config import ModelRateLimiter, RateLimiterResource
from tests.actors.random_schedules import schedule_count

SCHEDULES = schedule_count(100)
R: Pool = ("R", 0)


def claim(name: str, need: int = 1, *, priority: int = 1, pool: Pool = R) -> Claim:
    return Claim(name, priority, {pool: need})


def policy(*claims: Claim, count: int | None = None) -> RateLimitPolicy:
    made = RateLimitPolicy([] if count is None else [RateLimitResource("R", count)])
    for each in claims:
        made.register(each)
    return made


def names(claims: Sequence[Claim]) -> str:
    return "".join(each.instance for each in claims)


def shares(limits: RateLimitPolicy, claims: Sequence[Claim], runs: int) -> Counter[str]:
    """How often each runs if all want to run always, one batch at a time."""
    counts: Counter[str] = Counter()
    for each in claims:
        limits.ask(each)
    running: list[Claim] = []
    for _ in range(runs):
        running += limits.grant()
        done = running.pop(0)
        counts[done.instance] += 1
        limits.release(done)
        limits.ask(done)
    return counts


def test_without_a_count_the_neediest_instance_sets_it() -> None:
    a, b, c = claim("a", 3), claim("b", 2), claim("c", 1)
    limits = policy(a, b, c)
    assert limits.free(R) == 3
    for each in (c, b, a):
        limits.ask(each)
    assert names(limits.grant()) == "cb", "the one that waits longest first, and a does not fit"
    limits.release(c)
    assert limits.grant() == []
    limits.release(b)
    assert names(limits.grant()) == "a"
    limits.release(a)
    limits.unregister(a)
    assert limits.free(R) == 2


def test_counts_for_all_devices_and_for_one() -> None:
    """The larger one counts; a global resource has the largest of all, and what is not named there is none of."""
    limits = RateLimitPolicy([RateLimitResource("R", 2), RateLimitResource("R", 5, 1), RateLimitResource("R", 1, 2)])
    pools = [("R", 0), ("R", 1), ("R", 2), ("R", None), ("S", 0), ("S", None)]
    assert [limits.count(pool) for pool in pools] == [2, 5, 2, 5, 0, 0]


def test_the_smallest_of_several_counts_for_the_same_device_counts() -> None:
    limits = RateLimitPolicy([RateLimitResource("R", 3, 1), RateLimitResource("R", 2, 1), RateLimitResource("R", 4, 1)])
    assert limits.count(("R", 1)) == 2


@pytest.mark.parametrize("given", [RateLimitResource("R", 9, 3), RateLimitResource("S", 9)])
def test_a_resource_that_is_given_for_another_device_or_not_at_all_cannot_be_had(given: RateLimitResource) -> None:
    with pytest.raises(InvalidArgument, match='Resource count for "R" is limited to 0 which will prevent scheduling'):
        RateLimitPolicy([given]).register(claim("a"))


def test_devices_are_apart_and_a_global_resource_is_one() -> None:
    own = [claim("a", pool=("R", 0)), claim("b", pool=("R", 1))]
    shared = [claim("c", pool=("S", None)), claim("d", pool=("S", None))]
    limits = policy(*own, *shared)
    for each in (*own, *shared):
        limits.ask(each)
    assert names(limits.grant()) == "abc"


def test_an_instance_takes_all_that_it_needs_or_nothing() -> None:
    both = Claim("b", 1, {("R", 0): 1, ("S", 0): 1})
    only = claim("o", pool=("S", 0))
    third = claim("t", pool=("R", 0))
    limits = policy(both, only, third)
    limits.ask(only)
    limits.grant()
    limits.ask(both)
    assert limits.grant() == []
    assert limits.free(("R", 0)) == 1, "not held while it waits for S"
    limits.ask(third)
    assert names(limits.grant()) == "t"


@pytest.mark.parametrize(
    ("priorities", "expected"),
    [
        ((1, 1), (30, 30)),
        ((1, 2), (40, 20)),
        ((1, 5), (50, 10)),
        ((0, 1), (30, 30)),
        ((1, 2, 3), (33, 16, 11)),
    ],
)
def test_shares_are_as_the_inverse_of_the_priorities(priorities: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """A priority of 0 counts as 1."""
    claims: list[Claim] = []
    for number, priority in enumerate(priorities):
        made = make_claim(str(number), 0, ModelRateLimiter((RateLimiterResource("R", count=1),), priority))
        assert made is not None
        claims.append(made)
    counts = shares(policy(*claims), claims, 60)
    assert [counts[each.instance] for each in claims] == pytest.approx(expected, abs=1)


def test_a_new_instance_does_not_hold_up_the_others_until_it_has_caught_up() -> None:
    old, new = claim("old"), claim("new")
    limits = policy(old)
    assert shares(limits, [old], 1000) == {"old": 1000}
    limits.withdraw(old)
    limits.register(new)
    counts = shares(limits, [old, new], 20)
    assert (counts["old"], counts["new"]) == (10, 10)


def test_a_large_need_is_not_passed_for_ever() -> None:
    """With two small ones that always leave too little, it runs after a bounded number of them."""
    large, *small = (claim("L", 2), claim("a"), claim("b"))
    limits = policy(large, *small, count=2)
    for each in small:
        limits.ask(each)
    running = limits.grant()
    limits.ask(large)
    passes = 0
    while large not in running:
        done = running.pop(0)
        limits.release(done)
        limits.ask(done)
        granted = limits.grant()
        running += granted
        passes += len(granted)
        assert passes <= MOST_PASSES + 2
        assert running, "somebody always runs"


def test_what_is_kept_is_free_again_when_the_one_that_waits_gives_up() -> None:
    large, a, b = claim("L", 2), claim("a"), claim("b")
    limits = policy(large, a, b, count=2)
    limits.ask(a)
    limits.grant()
    limits.ask(large)
    for _ in range(MOST_PASSES):
        limits.ask(b)
        assert limits.grant() == [b]
        limits.release(b)
    limits.ask(b)
    assert limits.grant() == []
    limits.withdraw(large)
    assert limits.grant() == [b]


def limiter(*resources: tuple[str, bool, int], priority: int = 0) -> ModelRateLimiter:
    return ModelRateLimiter(
        tuple(RateLimiterResource(name, is_global, count) for name, is_global, count in resources), priority
    )


def test_a_claim_from_a_configuration() -> None:
    made = make_claim("i", 3, limiter(("R", False, 2), ("G", True, 1), ("R", False, 1), ("zero", False, 0)))
    assert made is not None
    assert (made.priority, made.needs) == (1, {("R", 3): 3, ("G", None): 1})
    assert make_claim("i", 0, limiter()) is None
    assert make_claim("i", 0, limiter(("R", False, 0))) is None


def test_a_resource_of_both_kinds_is_refused() -> None:
    text = 'Resource "R" is present as both global and device-specific resource in the model configuration.'
    with pytest.raises(InvalidArgument) as caught:
        make_claim("i", 0, limiter(("R", False, 1), ("R", True, 1)))
    assert caught.value.message == text
    limits = policy(claim("a"))
    with pytest.raises(InvalidArgument) as caught:
        limits.register(claim("b", pool=("R", None)))
    assert caught.value.message == text


def test_an_instance_that_could_never_run_is_refused() -> None:
    limits = policy(count=3)
    with pytest.raises(InvalidArgument) as caught:
        limits.register(claim("a", 4))
    assert caught.value.message == (
        'Resource count for "R" is limited to 3 which will prevent scheduling of one or more model instances, the '
        "minimum required count is 4"
    )
    assert limits.free(R) == 3


@pytest.mark.parametrize("part", range(4))
def test_random_schedules(part: int) -> None:
    """No pool is overdrawn, nothing that fits and may run waits, and everybody that goes on asking runs in the end."""
    for seed in range(part, SCHEDULES, 4):
        try:
            check_random_schedule(random.Random(seed))
        except Exception as error:
            raise AssertionError(f"schedule {seed}") from error


def check_random_schedule(random_: random.Random) -> None:
    pools: list[Pool] = [("R", 0), ("R", 1), ("S", None)]
    claims = [
        Claim(
            str(number),
            random_.randint(1, 4),
            {pool: random_.randint(1, 3) for pool in random_.sample(pools, random_.randint(1, 3))},
        )
        for number in range(random_.randint(1, 6))
    ]
    limits = policy(*claims)
    totals = {pool: limits.free(pool) for pool in pools}
    waiting: set[Claim] = set()
    running: set[Claim] = set()

    def grant() -> None:
        granted = limits.grant()
        assert waiting.issuperset(granted)
        waiting.difference_update(granted)
        running.update(granted)
        for pool in pools:
            used = sum(each.needs.get(pool, 0) for each in running)
            assert limits.free(pool) == totals[pool] - used >= 0
        assert limits.grant() == [], "once is enough"
        if waiting:
            assert running, "somebody runs"

    for _ in range(random_.randint(0, 80)):
        each = random_.choice(claims)
        if each in running:
            running.discard(each)
            limits.release(each)
        elif each not in waiting:
            waiting.add(each)
            limits.ask(each)
        elif random_.random() < 0.5:
            waiting.discard(each)
            limits.withdraw(each)
        grant()
    ran: set[Claim] = set()
    for _ in range(len(claims) * MOST_PASSES * 8):  # everybody asks again and again
        for each in claims:
            if each not in running and each not in waiting:
                waiting.add(each)
                limits.ask(each)
        grant()
        ran |= running
        if ran == set(claims):
            break
        done = min(running, key=lambda one: (one.turn, one.instance))
        running.discard(done)
        limits.release(done)
    assert ran == set(claims)
