"""The memory budget: who goes when there is no room, and who never does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.lifecycle.memory_budget import MemoryBudget, Victims

NAMES = "abcdef"


def budget(limit: int, **sizes: int) -> MemoryBudget:
    """With these models resident, the first of them not used for longest."""
    made = MemoryBudget(limit)
    for age, (name, size) in enumerate(sizes.items()):
        made.add(name, size, now=float(age))
    return made


def always(name: str) -> bool:
    return True


@pytest.mark.parametrize(
    ("needed", "keep", "used", "expected"),
    [
        (10, (), (), Victims((), True)),
        (20, (), (), Victims(("a",), True)),
        (20, ("a",), (), Victims(("b",), True)),
        (20, (), ("a",), Victims(("b",), True)),
        (45, (), (), Victims(("b",), True)),  # a, which is older, would not be enough, and with b is not needed
        (75, (), (), Victims(("b", "c"), True)),
        (95, (), (), Victims(("a", "b", "c"), True)),
        (75, (), ("c",), Victims(("a", "b"), False)),
        (200, (), (), Victims(("a", "b", "c"), True)),  # alone it may have more than there is
        (200, (), ("a",), Victims(("b", "c"), False)),
    ],
)
def test_who_goes(needed: int, keep: tuple[str, ...], used: tuple[str, ...], expected: Victims) -> None:
    """90 of 100 bytes are used: 10 by a, 40 by b, 40 by c."""
    made = budget(100, a=10, b=40, c=40)
    made.use(used)
    assert made.victims(needed, keep, always) == expected


def test_the_busy_stay() -> None:
    made = budget(100, a=50, b=50)
    assert made.victims(50, (), lambda name: name != "a") == Victims(("b",), True)
    assert made.victims(50, (), lambda name: False) == Victims((), False)


def test_use_makes_young() -> None:
    made = budget(100, a=50, b=50)
    made.use(["a"])
    made.give_back(["a"], now=10.0)
    assert made.victims(1, (), always) == Victims(("b",), True)


def test_what_is_on_its_way_counts() -> None:
    made = budget(100, a=50)
    made.reserve({"b": 50})
    assert made.used == 100
    made.begin_eviction("a")
    assert (made.used, made.missing(["a"]), made.evictions["a"]) == (100, ["a"], 1)
    assert made.victims(10, (), always) == Victims((), False)  # a goes anyway, and b comes
    made.end_eviction("a")
    made.add("b", 60, now=1.0)  # it has turned out larger
    assert (made.used, made.is_reserved("b"), made.missing("ab")) == (60, False, ["a"])
    made.remove("b")
    assert made.used == 0


def test_what_leaves_is_waited_for_and_nobody_goes_in_its_place() -> None:
    made = budget(100, a=50, b=50)
    made.begin_eviction("a")
    assert made.victims(50, (), always) == Victims((), False)
    assert made.doomed(50, ()) == frozenset()
    assert made.victims(60, (), always) == Victims(("b",), False)
    made.end_eviction("a")
    assert made.victims(50, (), always) == Victims((), True)


def test_those_that_hold_nothing_never_go() -> None:
    made = budget(10, ensemble=0, a=10)
    assert made.victims(10, (), always) == Victims(("a",), True)
    assert made.doomed(10, ()) == {"a"}


def test_the_doomed_are_those_that_were_not_used_for_longest_busy_or_not() -> None:
    made = budget(100, a=30, b=30, c=30)
    made.use(["a", "b"])
    assert made.doomed(20, ()) == {"a"}
    assert made.doomed(60, ("b",)) == {"a", "c"}
    assert made.doomed(5, ()) == frozenset()


@given(
    limit=st.integers(1, 100),
    sizes=st.dictionaries(st.sampled_from(NAMES), st.integers(0, 50)),
    used=st.sets(st.sampled_from(NAMES)),
    busy=st.sets(st.sampled_from(NAMES)),
    keep=st.sets(st.sampled_from(NAMES)),
    needed=st.integers(0, 120),
    order=st.permutations(NAMES),
)
def test_victims_are_the_right_ones(
    limit: int, sizes: dict[str, int], used: set[str], busy: set[str], keep: set[str], needed: int, order: list[str]
) -> None:
    """None that is in use, kept or busy; enough if it is said so; none that is not needed; and none younger than one
    that could have gone in its place."""
    made = MemoryBudget(limit)
    for age, name in enumerate(order):
        if name in sizes:
            made.add(name, sizes[name], now=float(age))
    made.use(used)
    victims, fits = made.victims(needed, keep, lambda name: name not in busy)
    untouchable = used | busy | keep
    assert untouchable.isdisjoint(victims)
    freed = sum(sizes[name] for name in victims)
    is_enough = made.used - freed + needed <= limit
    others = {name for name, size in sizes.items() if size and name not in keep} - set(victims)
    assert fits == (is_enough or not others)
    could_go = [name for name in order if sizes.get(name) and name not in untouchable]
    if not is_enough:
        assert set(victims) == set(could_go)
        return
    assert not any(made.used - freed + sizes[name] + needed <= limit for name in victims)
    if victims:
        youngest = max(could_go.index(name) for name in victims)
        older = could_go[:youngest]
        assert made.used - sum(sizes[name] for name in older) + needed > limit


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "use", "back", "evict", "end", "remove", "reserve", "release"]),
            st.sampled_from(NAMES),
            st.integers(0, 30),
        )
    )
)
def test_the_account_is_never_wrong(steps: list[tuple[str, str, int]]) -> None:
    """Whatever comes in whatever order: what is used is what is resident, reserved and leaving."""
    made = MemoryBudget(100)
    resident: dict[str, int] = {}
    reserved: dict[str, int] = {}
    leaving: dict[str, int] = {}
    users: list[str] = []
    for now, (step, name, size) in enumerate(steps):
        match step:
            case "add":
                made.add(name, size, float(now))
                resident[name] = size
                reserved.pop(name, None)
            case "use":
                made.use([name])
                users.append(name)
            case "back" if name in users:
                made.give_back([name], float(now))
                users.remove(name)
            case "evict" if name in made.victims(200, (), always).names:
                made.begin_eviction(name)
                leaving[name] = resident.pop(name)
                assert name not in users
            case "end":
                made.end_eviction(name)
                leaving.pop(name, None)
            case "remove":
                made.remove(name)
                resident.pop(name, None)
            case "reserve":
                made.reserve({name: size})
                reserved[name] = size
            case "release":
                made.release(name)
                reserved.pop(name, None)
        assert made.used == sum(resident.values()) + sum(reserved.values()) + sum(leaving.values())
        assert set(made.missing(NAMES)) == set(NAMES) - resident.keys()
        assert [each for each in NAMES if made.is_used(each)] == [each for each in NAMES if each in users]
