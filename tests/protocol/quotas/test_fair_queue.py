"""Fair queueing: turns by use over weight, against a plain model, and what is kept of holders that have gone."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TypeVar

import pytest

from protocol.quotas.fair_queue import NOBODY, FairQueue, FairShares

Item = TypeVar("Item", int, str)


@dataclass(eq=False)
class Key:
    name: str
    weight: float = 1.0


def taken(queue: FairQueue[Item], count: int) -> list[Item]:
    return [item for item, _ in queue.take(count)]


def test_a_single_holder_has_a_queue() -> None:
    queue: FairQueue[int] = FairQueue(FairShares(estimate=1.0))
    alice = Key("alice")
    for item in range(5):
        queue.add(item, alice)
    assert list(queue) == [0, 1, 2, 3, 4]
    assert queue.discard(2)
    assert not queue.discard(2)
    assert taken(queue, 2) == [0, 1]
    assert (list(queue), len(queue)) == ([3, 4], 2)


def test_those_that_wait_take_turns_within_one_batch() -> None:
    shares = FairShares(estimate=1.0)
    queue: FairQueue[str] = FairQueue(shares)
    alice, bob, carol = Key("alice"), Key("bob", weight=2), Key("carol")
    for number in range(6):
        queue.add(f"a{number}", alice)
    for number in range(6):
        queue.add(f"b{number}", bob)
    queue.add("c0", carol)
    queue.add("n0", NOBODY)
    assert taken(queue, 9) == ["a0", "b0", "c0", "n0", "b1", "a1", "b2", "b3", "a2"]


def test_who_had_nothing_waiting_has_saved_nothing_up() -> None:
    shares = FairShares(estimate=1.0)
    queue: FairQueue[str] = FairQueue(shares)
    alice, bob = Key("alice"), Key("bob")
    for number in range(100):
        queue.add(f"a{number}", alice)
    queue.take(50)
    for number in range(4):
        queue.add(f"b{number}", bob)
    assert taken(queue, 8).count("b0") == 1
    assert [item[0] for item in taken(queue, 2)] in (["a", "a"], ["a", "b"], ["b", "a"])


def test_a_lower_rank_goes_first_whatever_was_used() -> None:
    shares = FairShares(estimate=1.0)
    queue: FairQueue[str] = FairQueue(shares)
    alice, bob = Key("alice"), Key("bob")
    for number in range(3):
        queue.add(f"urgent{number}", alice, rank=1)
        queue.add(f"alice{number}", alice, rank=2)
        queue.add(f"bob{number}", bob, rank=2)
    assert (queue.lowest_rank(), queue.first_used()) == (1, 0.0)
    assert taken(queue, 9) == [
        *("urgent0", "urgent1", "urgent2"),
        *("bob0", "bob1", "bob2", "alice0", "alice1", "alice2"),
    ]


@pytest.mark.parametrize("seed", range(30))
def test_the_order_is_the_one_in_which_they_are_taken(seed: int) -> None:
    rng = random.Random(seed)
    shares = FairShares(estimate=rng.choice([0.0, 0.5]))
    queue: FairQueue[int] = FairQueue(shares)
    keys = [Key(str(number), rng.choice([1.0, 2.0, 0.25])) for number in range(4)]
    waiting: dict[int, tuple[Key, int]] = {}
    for item in range(400):
        key, rank = rng.choice(keys), rng.randrange(2)
        waiting[item] = (key, rank)
        queue.add(item, key, rank=rank, size=rng.randrange(1, 4))
        match rng.randrange(4):
            case 0:
                gone = rng.choice(list(waiting))
                del waiting[gone]
                assert queue.discard(gone)
            case 1:
                count = rng.randrange(len(waiting) + 1)
                order = list(queue)[:count]
                assert taken(queue, count) == order
                for each in order:
                    del waiting[each]
                    if rng.random() < 0.5:
                        shares.charge(rng.choice(keys), rng.random() - 0.2)
                shares.learn(rng.random())
        order = list(queue)
        assert sorted(order) == sorted(waiting)
        assert len(queue) == len(waiting)
        assert [waiting[each][1] for each in order] == sorted(waiting[each][1] for each in order)
        for key in keys:
            for rank in (0, 1):
                own = [each for each in order if waiting[each] == (key, rank)]
                assert own == sorted(own)


@pytest.mark.parametrize("seed", range(10))
def test_backlogged_holders_never_part_by_more_than_what_one_item_costs(seed: int) -> None:
    rng = random.Random(seed)
    shares = FairShares(estimate=1.0)
    queue: FairQueue[int] = FairQueue(shares)
    keys = [Key("a"), Key("b", 3.0), Key("c", 0.5)]
    served = dict.fromkeys(keys, 0.0)
    owner = {}
    for item in range(3000):
        owner[item] = keys[item % 3]
        queue.add(item, owner[item])
    for _ in range(900):
        for item, expected in queue.take(rng.randrange(1, 3)):
            cost = rng.random() * 4
            key = owner[item]
            shares.charge(key, cost - expected)
            served[key] += cost / key.weight
        if len(queue) < 2000:
            break
        assert max(served.values()) - min(served.values()) <= 2 * 4 / 0.5


def test_nothing_is_kept_of_many_holders_that_have_gone() -> None:
    shares = FairShares(estimate=1.0)
    queue: FairQueue[int] = FairQueue(shares)
    for item in range(500):
        queue.add(item, Key(str(item)))
        if item % 3:
            assert queue.take(1)
    while queue.take(7):
        pass
    assert len(shares) <= 66
