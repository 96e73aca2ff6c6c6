"""The response store: owners, bytes, age, and what is given up for what."""

from __future__ import annotations

import random

import pytest

from protocol.responses.event_log import EventLog
from protocol.responses.store import KeptResponse, ResponseStore

KIB = 1024


def kept(name: str, owner: str = "a", size: int = 0, **more: object) -> KeptResponse:
    """One of so many KiB; what each costs beside is one more."""
    return KeptResponse(name, owner, b"x" * (size * KIB), b"", **more)  # type: ignore[arg-type]


def there(store: ResponseStore, owner: str, count: int) -> list[int]:
    """Which of the responses with these numbers are kept."""
    return [number for number in range(count) if store.find(owner, str(number), 0) is not None]


def test_a_response_is_its_owners_alone() -> None:
    store = ResponseStore(100 * KIB, 10)
    assert store.keep(kept("1", "a"), 0)
    assert store.find("a", "1", 0) is not None
    assert store.find("b", "1", 0) is None
    assert store.find("", "1", 0) is None


def test_one_may_have_a_part_of_it_all() -> None:
    assert not ResponseStore(0, 10).keep(kept("1"), 0)
    store = ResponseStore(64 * KIB, 10)
    assert not store.keep(kept("1", size=4), 0)
    assert store.size == 0
    assert store.keep(kept("1", size=3), 0)


def test_the_oldest_goes_for_the_newest() -> None:
    store = ResponseStore(32 * KIB, 10)
    for number in range(32):
        store.keep(kept(str(number)), 0)
    store.keep(kept("32", size=1), 0)
    assert (there(store, "a", 33), store.size) == (list(range(2, 33)), 32 * KIB)


def test_who_has_the_most_gives_up_first() -> None:
    store = ResponseStore(16 * KIB, 10)
    store.keep(kept("0", "modest"), 0)
    for number in range(20):
        store.keep(kept(str(number), "greedy"), 0)
    assert there(store, "modest", 1) == [0]
    assert there(store, "greedy", 20) == list(range(5, 20))


def test_age() -> None:
    store = ResponseStore(100 * KIB, 10)
    store.keep(kept("1"), 0)
    store.keep(kept("2"), 5)
    assert store.find("a", "1", 9.9) is not None
    assert store.find("a", "1", 10) is None
    assert store.find("a", "2", 10) is not None
    assert store.size == KIB


def test_many_that_are_too_old_go_in_portions() -> None:
    """All at once would hold the server's loop."""
    store = ResponseStore(1000 * KIB, 10)
    for number in range(300):
        store.keep(kept(str(number)), 0)
    assert store.find("a", "299", 10) is None
    assert store.size == (300 - 64) * KIB
    for _ in range(4):
        store.expire(10)
    assert store.size == 0


def test_what_runs_is_neither_too_old_nor_given_up() -> None:
    store = ResponseStore(16 * KIB, 10)
    running = kept("0", is_running=True)
    store.keep(running, 0)
    for number in range(1, 21):
        store.keep(kept(str(number)), 20)
    assert (store.find("a", "0", 20), there(store, "a", 21)) == (running, [0, *range(6, 21)])
    running.is_running = False
    assert store.find("a", "0", 20) is None


def test_events_of_what_runs_are_bounded_by_the_store() -> None:
    store = ResponseStore(16 * KIB, 10)
    running = kept("0", is_running=True, log=EventLog())
    store.keep(running, 0)
    store.keep(kept("1"), 0)
    assert running.log is not None
    for _ in range(1000):
        running.log.append(b"data: 12345678\n\n")
        store.recount(running)
        assert store.size <= store.limit
    assert there(store, "a", 2) == [0]
    assert running.log.size > 14 * KIB


def test_what_was_removed_does_not_count() -> None:
    store = ResponseStore(16 * KIB, 10)
    response = kept("1")
    store.keep(response, 0)
    store.remove(response)
    store.remove(response)
    response.items = b"x" * KIB
    store.recount(response)
    assert (store.size, store.find("a", "1", 0)) == (0, None)


@pytest.mark.parametrize("seed", range(20))
def test_random_schedules_never_hold_more_than_the_limit(seed: int) -> None:
    chance = random.Random(seed)
    store = ResponseStore(100 * KIB, 50)
    known: list[KeptResponse] = []
    for now in range(300):
        match chance.randrange(4):
            case 0 | 1:
                made = kept(str(now), chance.choice("abc"), chance.randrange(5))
                assert store.keep(made, now)
                known.append(made)
            case 2 if known:
                each = chance.choice(known)
                each.answer = b"y" * chance.randrange(3 * KIB)
                store.recount(each)
            case _ if known:
                store.remove(chance.choice(known))
        found = [each for each in known if store.find(each.owner, each.id, now) is each]
        assert store.size == sum(each.size for each in found) <= store.limit
        assert all(now - each.kept_at < 50 for each in found)
