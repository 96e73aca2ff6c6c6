"""The byte budget of ensembles, under tables and random schedules."""

from __future__ import annotations

import random

import pytest

from actors.ensemble.budget import ByteBudget, Pass, PassKind, PassOwner
from tests.actors.random_schedules import schedule_count

SCHEDULES = schedule_count(200)


class Budget(ByteBudget):
    """Remembers who was woken."""

    def __init__(self, limit: float) -> None:
        self.woken: list[Pass] = []
        super().__init__(limit, self.woken.append)


@pytest.fixture
def requests() -> PassOwner:
    return PassOwner(PassKind())


def stream(most: int = 64) -> PassOwner:
    return PassOwner(PassKind(is_stream=True), most)


def test_what_fits_begins_and_what_does_not_waits_its_turn(requests: PassOwner) -> None:
    budget = Budget(100)
    first, second = (budget.ask(requests, starts_with=40) for _ in range(2))
    third, fourth = budget.ask(requests, starts_with=30), budget.ask(requests, starts_with=10)
    assert [each.has_begun for each in (first, second, third, fourth)] == [True, True, False, False]
    assert budget.waiting_requests == 2
    budget.leave(first)
    assert budget.woken == [third, fourth]
    assert budget.used == 80


def test_the_only_pass_of_its_owner_always_begins(requests: PassOwner) -> None:
    budget = Budget(100)
    assert budget.ask(requests, starts_with=1000).has_begun
    assert budget.ask(stream(), starts_with=1000).has_begun
    own = stream()
    assert budget.ask(own, starts_with=1000).has_begun
    assert not budget.ask(own, starts_with=1).has_begun
    assert not budget.ask(requests, starts_with=1).has_begun


def test_what_a_pass_holds_counts_when_it_is_more_than_was_expected(requests: PassOwner) -> None:
    budget = Budget(100)
    first = budget.ask(requests, starts_with=40)
    for held, used in ((10, 40), (90, 90), (50, 50)):
        budget.hold(first, held)
        assert budget.used == used
    budget.hold(first, 90)
    waiting = budget.ask(requests, starts_with=40)
    assert not waiting.has_begun
    budget.hold(first, 60)
    assert budget.woken == [waiting]


def test_it_learns_how_much_passes_come_to_hold(requests: PassOwner) -> None:
    budget = Budget(100)
    first = budget.ask(requests, starts_with=1)
    budget.hold(first, 60)
    budget.hold(first, 0)
    budget.leave(first)
    assert requests.kind.expected == 60
    assert budget.ask(requests, starts_with=1).has_begun
    assert not budget.ask(requests, starts_with=1).has_begun, "two would hold 120"
    for _ in range(20):
        requests.kind.learn(5)
    assert requests.kind.expected < 10, "what is long ago is forgotten"


def test_an_owner_has_no_more_passes_than_it_says() -> None:
    budget = Budget(1000)
    owner = stream(most=2)
    first, _ = budget.ask(owner, starts_with=1), budget.ask(owner, starts_with=1)
    third = budget.ask(owner, starts_with=1)
    assert not third.has_begun
    budget.leave(first)
    assert budget.woken == [third]


def test_streams_go_before_requests(requests: PassOwner) -> None:
    budget = Budget(100)
    owner = stream()
    running = [budget.ask(requests, starts_with=50), budget.ask(owner, starts_with=50)]
    request, response = budget.ask(requests, starts_with=50), budget.ask(owner, starts_with=50)
    budget.leave(running[0])
    assert budget.woken == [response, request], "the second is the only request then"
    assert budget.used == 150


def test_one_that_gives_up_waiting_lets_others_by(requests: PassOwner) -> None:
    budget = Budget(100)
    budget.ask(requests, starts_with=60)
    large, small = budget.ask(requests, starts_with=60), budget.ask(requests, starts_with=10)
    assert not small.has_begun, "first come, first served"
    budget.leave(large)
    budget.leave(large)
    assert budget.woken == [small]
    assert (budget.used, budget.waiting_requests) == (70, 0)


def test_nothing_that_has_left_counts_any_more(requests: PassOwner) -> None:
    budget = Budget(100)
    first = budget.ask(requests, starts_with=10)
    budget.leave(first)
    budget.hold(first, 50)
    budget.leave(first)
    assert (budget.used, requests.count) == (0, 0)


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_random_schedules(seed: int) -> None:
    """Nobody is lost or woken twice, the limit is passed only as the rules say, and all come to an end."""
    random_ = random.Random(seed)
    budget = Budget(random_.choice([0, 50, 200]))
    requests = PassOwner(PassKind())
    owners = [requests, *(stream(random_.choice([1, 2, 64])) for _ in range(3))]
    asked: list[Pass] = []
    running: list[Pass] = []
    for _ in range(random_.randrange(100)):
        action = random_.random()
        if action < 0.5:
            owner = random_.choice(owners)
            before = budget.used
            new = budget.ask(owner, starts_with=random_.randrange(60))
            asked.append(new)
            if new.has_begun:
                running.append(new)
                assert owner.count == 1 or before + new.expected <= budget.limit
        elif running and action < 0.75:
            budget.hold(random_.choice(running), random_.randrange(100))
        elif running and action < 0.95:
            budget.leave(running.pop(random_.randrange(len(running))))
        else:
            waiting = [
                each for each in asked if not each.has_begun and each not in running and each not in budget.woken
            ]
            if waiting:
                left = random_.choice(waiting)
                budget.leave(left)
                asked.remove(left)
        running += [each for each in budget.woken if each.has_begun and each not in running]
        assert all(owner.count <= owner.most for owner in owners)
        assert budget.used == sum(each.counted for each in asked if each.has_begun)
        for owner in owners:
            waits = [each for each in asked if each.owner is owner and not each.has_begun and each not in budget.woken]
            assert owner.count or not [each for each in waits if each in budget._streams or each in budget._requests]
    while running:
        budget.leave(running.pop())
        running += [each for each in budget.woken if each.has_begun and each not in running]
    assert len(set(map(id, budget.woken))) == len(budget.woken)
    assert (budget.used, budget.waiting_requests, sum(owner.count for owner in owners)) == (0, 0, 0)
