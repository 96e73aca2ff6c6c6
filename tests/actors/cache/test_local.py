"""The local cache: least recently used, within a budget of bytes."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest

from actors.cache.local import ENTRY_OVERHEAD_BYTES, LocalCache, LruEntries
from tests.actors.random_schedules import schedule_count

SCHEDULES = schedule_count(200)


def entries(values: int, size: int = 100) -> LruEntries:
    """With room for so many values of this size."""
    return LruEntries(values * (size + ENTRY_OVERHEAD_BYTES))


def test_the_least_recently_used_goes_first() -> None:
    cache = entries(2)
    assert cache.add(b"a", bytes(100))
    assert cache.add(b"b", bytes(100))
    assert cache.get(b"a") == bytes(100)
    assert cache.add(b"c", bytes(100))
    assert [key for key in (b"a", b"b", b"c") if cache.get(key) is not None] == [b"a", b"c"]


def test_a_large_value_drops_as_many_as_it_takes() -> None:
    cache = entries(3)
    for key in (b"a", b"b", b"c"):
        cache.add(key, bytes(100))
    assert cache.add(b"d", bytes(200 + ENTRY_OVERHEAD_BYTES))
    assert [key for key in (b"a", b"b", b"c", b"d") if cache.get(key) is not None] == [b"c", b"d"]


def test_what_is_there_stays() -> None:
    cache = entries(2)
    assert cache.add(b"a", b"first")
    assert not cache.add(b"a", b"second")
    assert cache.get(b"a") == b"first"


def test_random_schedules_agree_with_a_naive_one() -> None:
    """The budget holds after every call, and what is there is what a list in order of use would have."""
    for seed in range(SCHEDULES):
        try:
            check_random_schedule(random.Random(seed))
        except Exception as error:
            raise AssertionError(f"schedule {seed}") from error


def check_random_schedule(random_: random.Random) -> None:
    budget = random_.randint(1, 4) * (ENTRY_OVERHEAD_BYTES + 64)
    cache = LruEntries(budget)
    naive: OrderedDict[bytes, bytes] = OrderedDict()
    for _ in range(random_.randint(0, 60)):
        is_insertion, number = random_.random() < 0.5, random_.randint(0, 7)
        key, value = bytes([number]), bytes([number]) * random_.choice([0, 64, random_.randint(0, 400)])
        if is_insertion and cache.can_hold(value):
            assert cache.add(key, value) is (key not in naive)
            if key not in naive:
                naive[key] = value
                while sum(len(kept) + ENTRY_OVERHEAD_BYTES for kept in naive.values()) > budget:
                    naive.popitem(last=False)
        elif not is_insertion:
            assert cache.get(key) == naive.get(key)
            if key in naive:
                naive.move_to_end(key)
        assert cache.used_bytes == sum(len(kept) + ENTRY_OVERHEAD_BYTES for kept in naive.values()) <= budget
        assert len(cache) == len(naive)


async def test_a_value_that_can_never_fit_drops_nothing() -> None:
    cache = LocalCache({"size": "1024"})
    assert await cache.insert(b"a", b"small")
    assert await cache.insert(b"b", bytes(1024)), "not kept, but not there before either"
    assert await cache.look_up(b"b") is None
    assert await cache.look_up(b"a") == b"small"
    await cache.close()
    assert await cache.look_up(b"a") is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "setting 'size' is required"),
        ({"size": "1023"}, "setting 'size' expects a whole number from 1024 to .*, got '1023'"),
        ({"size": "1e9"}, "got '1e9'"),
        ({"size": "-1"}, "got '-1'"),
        ({"size": "1024", "speed": "9"}, "unknown setting 'speed'"),
    ],
)
def test_wrong_settings(given: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        LocalCache(given)
