"""Admission of generations: order, bounds, room in the cache, and what is refused."""

from __future__ import annotations

import random

import pytest

from backends.engines.admission import Admission, AdmissionLimits, Need, QueueFull
from backends.engines.worker.trioton_engine.engine import Stats


def admission(**limits: int) -> Admission[str]:
    return Admission(AdmissionLimits(**limits), "m")


def admitted(policy: Admission[str]) -> list[str]:
    """All that the engine is given now."""
    found = []
    while (item := policy.next()) is not None:
        found.append(item)
    return found


def test_without_limits_all_are_admitted_as_they_come() -> None:
    policy = admission()
    for name in "abc":
        policy.add(name, Need(10, 1000))
    assert admitted(policy) == ["a", "b", "c"]
    assert (policy.waiting, policy.in_flight) == (0, 3)


def test_the_lower_priority_comes_first_and_within_one_the_older() -> None:
    policy = admission(requests=1)
    policy.add("first", Need(1, 2))
    assert admitted(policy) == ["first"]
    for name, priority in (("b0", 0), ("c5", 5), ("a-1", -1), ("b1", 0)):
        policy.add(name, Need(1, 2, priority))
    order = []
    policy.finish("first")
    while found := admitted(policy):
        order += found
        policy.finish(found[0])
    assert order == ["a-1", "b0", "b1", "c5"]


@pytest.mark.parametrize(
    ("limits", "needs", "count"),
    [
        ({"requests": 2}, [Need(1, 1)] * 3, 2),
        ({"tokens": 100}, [Need(10, 50)] * 3, 2),
        ({"tokens": 100}, [Need(10, 51)] * 3, 1),
        ({"tokens": 10}, [Need(10, 51)] * 3, 1),  # it would never fit: alone
        ({"requests": 5, "tokens": 100}, [Need(1, 20)] * 9, 5),
    ],
)
def test_bounds_of_what_is_in_flight(limits: dict[str, int], needs: list[Need], count: int) -> None:
    policy = admission(**limits)
    for place, need in enumerate(needs):
        policy.add(str(place), need)
    assert len(admitted(policy)) == count
    policy.finish("0")
    assert len(admitted(policy)) == 1, "the room of one is that of the next"


def test_a_prompt_waits_for_room_in_the_cache() -> None:
    policy = admission()
    policy.note(Stats(cache_blocks=10, block_tokens=16))
    policy.add("a", Need(100, 200))
    policy.add("b", Need(60, 200))
    policy.add("c", Need(1, 200))
    assert admitted(policy) == ["a", "b"], "160 tokens are free, and the engine has begun neither"
    policy.begin("a")
    policy.begin("b")
    policy.note(Stats(running=2, cache_usage=1.0, cache_blocks=10, block_tokens=16))
    assert admitted(policy) == []
    policy.finish("a")
    policy.note(Stats(running=1, cache_usage=0.4, cache_blocks=10, block_tokens=16))
    assert admitted(policy) == ["c"]


def test_what_fits_nowhere_is_left_to_the_engine_alone() -> None:
    policy = admission()
    policy.note(Stats(cache_blocks=1, block_tokens=16))
    policy.add("large", Need(1000, 2000))
    assert admitted(policy) == ["large"]


def test_an_engine_that_tells_of_no_cache_is_given_all() -> None:
    policy = admission()
    policy.note(Stats(cache_usage=1.0))
    policy.add("a", Need(1000, 2000))
    policy.add("b", Need(1000, 2000))
    assert admitted(policy) == ["a", "b"]


def test_a_full_queue_refuses_by_requests() -> None:
    policy = admission(requests=1, queued_requests=1)
    policy.add("a", Need(1, 1))
    admitted(policy)
    policy.add("b", Need(1, 1))
    with pytest.raises(QueueFull, match="model 'm': 1 requests wait for its engine, which is the maximum") as caught:
        policy.add("c", Need(1, 1))
    assert caught.value.limit == "max_num_queued_reqs"
    assert policy.withdraw("b")
    policy.add("c", Need(1, 1))


def test_a_full_queue_refuses_by_tokens_but_takes_one_of_any_length() -> None:
    policy = admission(requests=1, queued_tokens=100)
    policy.add("a", Need(500, 1))
    admitted(policy)
    policy.add("b", Need(500, 1))
    with pytest.raises(QueueFull, match="have 500 tokens; with 1 more they would exceed 100") as caught:
        policy.add("c", Need(1, 1))
    assert caught.value.limit == "max_num_queued_tokens"


def test_one_that_is_withdrawn_stands_in_nobodys_way() -> None:
    policy = admission(tokens=100)
    policy.add("a", Need(10, 80))
    policy.add("large", Need(10, 90))
    policy.add("small", Need(10, 20))
    assert admitted(policy) == ["a"]
    assert policy.withdraw("large")
    assert not policy.withdraw("large")
    assert admitted(policy) == ["small"]


def test_what_waits_is_given_back_in_the_order_in_which_it_came() -> None:
    policy = admission(requests=1)
    for name, priority in (("a", 0), ("b", 9), ("c", -9)):
        policy.add(name, Need(1, 1, priority))
    assert admitted(policy) == ["c"]
    assert policy.clear() == ["a", "b"]
    assert policy.waiting == 0
    policy.finish("c")
    assert admitted(policy) == []


@pytest.mark.parametrize("seed", range(20))
def test_random_schedules_lose_nothing_and_keep_the_bounds(seed: int) -> None:
    chance = random.Random(seed)
    policy = admission(requests=4, tokens=300, queued_requests=30)
    needs: dict[str, Need] = {}
    waiting, running, done = set[str](), set[str](), set[str]()
    for step in range(400):
        what = chance.random()
        if what < 0.4:
            name, need = str(step), Need(chance.randrange(1, 40), chance.randrange(40, 120), chance.randrange(3))
            try:
                policy.add(name, need)
            except QueueFull:
                assert len(waiting) == 30
            else:
                needs[name] = need
                waiting.add(name)
        elif what < 0.7 and running:
            name = chance.choice(sorted(running))
            policy.finish(name)
            running.discard(name)
            done.add(name)
        elif what < 0.8 and waiting:
            name = chance.choice(sorted(waiting))
            assert policy.withdraw(name)
            waiting.discard(name)
        for name in admitted(policy):
            waiting.remove(name)
            running.add(name)
            if chance.random() < 0.5:
                policy.begin(name)
        assert (policy.waiting, policy.in_flight) == (len(waiting), len(running))
        assert len(running) <= 4
        assert len(running) == 1 or sum(needs[name].most_tokens for name in running) <= 300
        assert not waiting or running, "nothing waits for nothing"
