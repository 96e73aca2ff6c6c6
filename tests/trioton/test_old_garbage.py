"""Old garbage is looked for when there is time, or when it must be; as long as nothing is found, less often; and where
that takes long, not for what clients hold."""

from __future__ import annotations

import pytest

from trioton.old_garbage import CLIENT_BLOCKS, CLIENT_BYTES, GROWTH_BYTES, SHORT_SECONDS, Held, OldGarbage, Usage

FROZEN = 100_000  # blocks
MANY = FROZEN + 5_000_000  # with so many a collection takes long
START = Usage(0, 1 << 30, FROZEN)


def nobody() -> Held:
    return Held()


def usage(*, objects: int = 0, resident: int = START.resident, blocks: int = FROZEN) -> Usage:
    return Usage(objects, resident, blocks)


@pytest.mark.parametrize(
    ("looks", "due"),
    [
        # Thousands of objects so far, whether the process is idle, and what would be found.
        ([(599, True, 0), (600, True, 0)], [False, True]),
        ([(600, False, 0), (2399, False, 0), (2400, False, 0)], [False, False, True]),
        ([(600, True, 0), (1799, True, 0), (1800, True, 0)], [True, False, True]),
        ([(600, True, 50), (1199, True, 0), (1200, True, 0)], [True, False, True]),
        ([(600, True, 0), (1800, True, 50), (2400, True, 0)], [True, True, True]),
    ],
)
def test_when_old_garbage_is_looked_for(looks: list[tuple[int, bool, int]], due: list[bool]) -> None:
    policy, found = OldGarbage(START), []
    for thousands, is_idle, garbage_found in looks:
        now = usage(objects=1_000 * thousands)
        found.append(policy.is_due(now, nobody, is_idle=is_idle))
        if found[-1]:
            policy.note(now, now, 1_000 * garbage_found, 0.001)
    assert found == due


@pytest.mark.parametrize(("is_idle", "megabytes"), [(True, 64), (False, 256)])
def test_a_process_that_grows_is_looked_at(is_idle: bool, megabytes: int) -> None:
    """Few objects may hold much: what waits for a collection is bounded by that, too."""
    policy, resident = OldGarbage(START), START.resident
    for _ in range(3):
        assert not policy.is_due(usage(resident=resident + (megabytes << 20) - 1), nobody, is_idle=is_idle)
        resident += megabytes << 20
        grown = usage(resident=resident)
        assert policy.is_due(grown, nobody, is_idle=is_idle)
        policy.note(grown, grown, 0, 0.001)
    assert not policy.is_due(usage(resident=resident - (1 << 30)), nobody, is_idle=is_idle)


def test_it_is_never_looked_for_less_often_than_that() -> None:
    policy, objects = OldGarbage(START), 0
    for _ in range(20):
        objects += 9_600_000
        assert policy.is_due(usage(objects=objects), nobody, is_idle=True)
        policy.note(usage(objects=objects), usage(objects=objects), 0, 0.001)


@pytest.mark.parametrize("is_idle", [True, False])
def test_what_clients_hold_is_not_looked_at_where_that_takes_long(is_idle: bool) -> None:
    clients = 20_000
    held = Held(clients, size=300 << 20)
    many = usage(
        objects=100_000_000,
        resident=START.resident + clients * CLIENT_BYTES + 2 * held.size,
        blocks=FROZEN + clients * CLIENT_BLOCKS,
    )
    assert not OldGarbage(START).is_short(many)
    assert not OldGarbage(START).is_due(many, lambda: held, is_idle=is_idle)
    assert OldGarbage(START).is_due(many, lambda: Held(clients // 2, held.size), is_idle=is_idle)
    assert OldGarbage(START).is_due(many, lambda: Held(clients, 0), is_idle=is_idle)


def test_what_clients_held_that_have_gone_is_no_garbage() -> None:
    """The process keeps the memory; as few objects are left, soon all is looked at in no time."""
    policy, held = OldGarbage(START), Held(20_000)
    many = usage(resident=START.resident + held.count * CLIENT_BYTES, blocks=MANY)
    assert not policy.is_due(many, lambda: held, is_idle=True)
    gone = usage(resident=many.resident, blocks=FROZEN + 20_000)
    assert not policy.is_short(gone)
    assert not policy.is_due(gone, nobody, is_idle=True)
    few = usage(resident=many.resident, blocks=FROZEN)
    assert policy.is_due(few, nobody, is_idle=True)
    policy.note(few, few, 0, 0.001)
    more = usage(resident=few.resident + 4 * GROWTH_BYTES, blocks=MANY)
    assert policy.is_due(more, nobody, is_idle=False)


def test_a_process_is_looked_at_that_grows_by_more_than_its_clients_explain() -> None:
    policy, held = OldGarbage(START), Held(1_000)
    explained = START.resident + held.count * CLIENT_BYTES
    for growth in (4 * GROWTH_BYTES - 1, 4 * GROWTH_BYTES):
        is_due = policy.is_due(usage(resident=explained + growth, blocks=MANY), lambda: held, is_idle=False)
        assert is_due == (growth == 4 * GROWTH_BYTES)


def test_a_long_one_that_was_for_nothing_is_not_repeated_until_twice_as_much_has_come() -> None:
    policy, resident, growth, some = OldGarbage(START), START.resident, GROWTH_BYTES, FROZEN + 1_000_000
    for _ in range(8):
        assert not policy.is_due(usage(resident=resident + growth - 1, blocks=some), nobody, is_idle=True)
        resident += growth
        now = usage(objects=MANY, resident=resident, blocks=some)
        assert policy.is_due(now, nobody, is_idle=True)
        policy.note(now, now, 0, 1.0)
        growth = min(2 * growth, 1 << 30)  # which is the bound
    freed = usage(objects=2 * MANY, resident=resident - growth // 2, blocks=some)
    policy.note(usage(objects=2 * MANY, resident=resident + growth, blocks=some), freed, 5, 1.0)
    assert policy.is_due(usage(resident=freed.resident + GROWTH_BYTES, blocks=some), nobody, is_idle=True)


def test_how_long_it_takes_is_told_by_how_long_it_took() -> None:
    policy, now = OldGarbage(START), usage(blocks=FROZEN + 1_000_000)
    assert policy.seconds(START) == 0
    policy.note(now, now, 0, 0.25)
    assert policy.seconds(usage(blocks=FROZEN + 2_000_000)) == pytest.approx(0.5)
    few = usage(blocks=FROZEN + 10)
    policy.note(few, few, 0, SHORT_SECONDS)  # of few it says nothing
    assert policy.seconds(usage(blocks=FROZEN + 2_000_000)) == pytest.approx(0.5)


def test_clients_are_counted_only_where_the_process_has_grown() -> None:
    def never() -> Held:
        raise AssertionError

    policy = OldGarbage(START)
    assert not policy.is_due(usage(objects=MANY, blocks=FROZEN + 1_000_000), never, is_idle=True)
