"""Turns of keys with weights: shares of a model under load, by simulation, and that nothing else changes."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Mapping

import pytest

from actors.mail.messages import QueuedRequest
from actors.mail.reply_slot import ReplySlot
from actors.scheduling.batching.dynamic import DynamicBatchingPolicy
from actors.scheduling.batching.policy import BatchingPolicy, DirectPolicy
from protocol.messages import InferenceRequest
from protocol.quotas.accounts import Account, Terms
from repository.model_config import ModelDynamicBatching


def account(name: str, weight: float = 1.0) -> Account:
    return Account(Terms(name, weight=weight), lambda: 0.0)


def of(
    owner: Account | None, arrival: float = 0.0, *, priority: int = 0, size: int = 1, shape: int = 0
) -> QueuedRequest:
    request = InferenceRequest("m", [], priority=priority, charge=None if owner is None else owner.admit("m"))
    return QueuedRequest(request, size, ((shape,),), arrival, ReplySlot())


def dynamic(max_batch_size: int = 8, levels: int = 0, delay_us: int = 0) -> DynamicBatchingPolicy:
    config = ModelDynamicBatching(
        max_queue_delay_microseconds=delay_us, priority_levels=levels, default_priority_level=levels
    )
    return DynamicBatchingPolicy(config, max_batch_size=max_batch_size)


POLICIES: Mapping[str, Callable[[], BatchingPolicy]] = {
    "default scheduler": DirectPolicy,
    "batches of one": lambda: dynamic(1),
    "batches": dynamic,
    "batches with a delay": lambda: dynamic(delay_us=20_000),
    "levels": lambda: dynamic(levels=2),
}


def shares_of(
    policy: BatchingPolicy,
    offered: Mapping[Account, float],
    *,
    seed: int = 1,
    seconds: float = 300.0,
    instances: int = 1,
    cost: Callable[[random.Random], float] = lambda rng: 0.01,
    shapes: int = 1,
) -> dict[str, float]:
    """The compute time of each key, by name, where each offers so many requests in a second, whatever is answered."""
    rng = random.Random(seed)
    arrivals = [(rng.expovariate(rate), number, owner, rate) for number, (owner, rate) in enumerate(offered.items())]
    heapq.heapify(arrivals)
    computed = dict.fromkeys((owner.name for owner in offered), 0.0)
    running: list[tuple[float, int, list[QueuedRequest], float]] = []
    now, batches = 0.0, 0
    while now < seconds:
        now = min(arrivals[0][0], running[0][0] if running else math.inf, max(now, policy.wake_at(is_idle=True)))
        if len(running) == instances:
            now = min(arrivals[0][0], running[0][0])
        while arrivals[0][0] <= now:
            at, number, owner, rate = heapq.heappop(arrivals)
            policy.add(of(owner, at, shape=rng.randrange(shapes)))
            heapq.heappush(arrivals, (at + rng.expovariate(rate), number, owner, rate))
        while running and running[0][0] <= now:
            _, _, items, per_row = heapq.heappop(running)
            for item in items:
                assert item.request.charge is not None
                computed[item.request.charge.account.name] += per_row
            policy.settle(items, per_row)
        while len(running) < instances and (batch := policy.next_batch(now)) is not None:
            batches += 1
            per_row = cost(rng)
            heapq.heappush(running, (now + per_row * len(batch.items), batches, list(batch.items), per_row))
    return computed


@pytest.mark.parametrize("instances", [1, 3])
@pytest.mark.parametrize("kind", POLICIES)
def test_two_keys_that_offer_ten_to_one_get_one_to_one(kind: str, instances: int) -> None:
    """The capacity is 100 requests in a second of each instance; either key alone offers more than half of it."""
    alice, bob = account("alice"), account("bob")
    found = shares_of(POLICIES[kind](), {alice: 600 * instances, bob: 60 * instances}, instances=instances, seconds=12)
    assert found["alice"] / found["bob"] == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_by_compute_time_where_requests_cost_different_times(seed: int) -> None:
    alice, bob = account("alice"), account("bob")
    found = shares_of(
        dynamic(), {alice: 700, bob: 70}, seed=seed, seconds=30, cost=lambda rng: rng.lognormvariate(-4.6, 1.0)
    )
    assert found["alice"] / found["bob"] == pytest.approx(1, abs=0.05)


def test_by_weight() -> None:
    alice, bob, carol = account("alice", 1), account("bob", 3), account("carol", 2)
    found = shares_of(dynamic(), {alice: 200, bob: 200, carol: 200}, seconds=20)
    assert found["bob"] / found["alice"] == pytest.approx(3, rel=0.05)
    assert found["carol"] / found["alice"] == pytest.approx(2, rel=0.05)


def test_who_wants_less_than_its_share_gets_all_of_it_and_the_others_the_rest() -> None:
    alice, bob, carol = account("alice"), account("bob"), account("carol")
    found = shares_of(dynamic(), {alice: 500, bob: 10, carol: 200}, seconds=20)
    assert found["bob"] == pytest.approx(2, rel=0.15)  # seconds of 200 requests
    assert found["alice"] / found["carol"] == pytest.approx(1, abs=0.05)
    assert sum(found.values()) == pytest.approx(20, rel=0.02)


def test_requests_of_other_shapes_are_no_way_around_it() -> None:
    alice, bob = account("alice"), account("bob")
    found = shares_of(dynamic(4), {alice: 1000, bob: 100}, seconds=10, shapes=5)
    assert found["alice"] / found["bob"] == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("seed", range(5))
def test_nothing_changes_where_only_one_key_waits(kind: str, seed: int) -> None:
    """The same batches as of requests without keys, whatever comes, is given up and computed."""
    rng = random.Random(seed)
    with_key, without = POLICIES[kind](), POLICIES[kind]()
    alice = account("alice")
    pairs: dict[int, tuple[QueuedRequest, QueuedRequest]] = {}
    numbers: dict[QueuedRequest, int] = {}
    now = 0.0
    for number in range(600):
        now += rng.random() / 50
        priority, size, shape = rng.randrange(3), rng.randrange(1, 4), rng.randrange(2)
        pair = tuple(of(owner, now, priority=priority, size=size, shape=shape) for owner in (alice, None))
        pairs[number] = (pair[0], pair[1])
        numbers.update(dict.fromkeys(pair, number))
        assert with_key.add(pair[0]) == without.add(pair[1])
        if rng.random() < 0.1:
            gone = pairs[rng.randrange(number + 1)]
            with_key.abandon(gone[0])
            without.abandon(gone[1])
        if rng.random() < 0.4:
            batches = with_key.next_batch(now), without.next_batch(now)
            first, second = ([] if each is None else [numbers[item] for item in each.items] for each in batches)
            assert first == second
            if batches[0] is not None:
                with_key.settle(batches[0].items, rng.random())
        assert with_key.waiting == without.waiting
        assert with_key.wake_at(is_idle=True) == without.wake_at(is_idle=True)


def test_levels_go_before_shares_and_late_ones_stay_late() -> None:
    policy = dynamic(max_batch_size=1, levels=2)
    alice, bob = account("alice"), account("bob")
    urgent = [of(alice, number, priority=1) for number in range(4)]
    rest = [of(owner, 10 + number, priority=2) for number in range(2) for owner in (alice, bob)]
    for item in (*rest, *urgent):
        policy.add(item)
    taken: list[QueuedRequest] = []
    while (batch := policy.next_batch(20.0)) is not None:
        taken += batch.items
        policy.settle(batch.items, 1.0)
    assert taken[:4] == urgent
    assert taken[4:] == [rest[1], rest[3], rest[0], rest[2]]  # bob has used nothing yet


def test_turns_begin_with_the_first_weight_and_end_with_the_last() -> None:
    policy = dynamic(max_batch_size=1)
    alice, bob = account("alice", 0), account("bob", 0)
    early = [of(alice, number) for number in range(3)]
    for item in early:
        policy.add(item)
    alice.weight = bob.weight = 1.0
    late = of(bob, 3.0)
    policy.add(late)
    order: list[QueuedRequest] = []
    while (batch := policy.next_batch(5.0)) is not None:
        order += batch.items
        policy.settle(batch.items, 1.0)
    assert order == [early[0], late, early[1], early[2]]
    alice.weight = bob.weight = 0.0
    plain = [of(owner, 6.0 + number) for number in range(2) for owner in (alice, alice, bob)]
    for item in plain:
        policy.add(item)
    order = []
    while (batch := policy.next_batch(9.0)) is not None:
        order += batch.items
    assert order == plain


@pytest.mark.parametrize("kind", POLICIES)
def test_all_that_waits_is_given_back_as_it_came(kind: str) -> None:
    policy = POLICIES[kind]()
    items = [of(account(str(number % 3)), float(number)) for number in range(9)]
    for item in items:
        policy.add(item)
    assert policy.clear() == items
    assert (policy.waiting, policy.next_batch(99.0)) == (0, None)
