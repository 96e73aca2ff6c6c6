"""What waits for clients is bounded in bytes, for each call and over all of them, and every call goes on."""

from __future__ import annotations

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from protocol.limits.request_memory import RequestMemory
from protocol.limits.response_memory import MAX_WAITING_BYTES, ResponseMemory

SIZES = st.sampled_from([0, 1, MAX_WAITING_BYTES // 2, MAX_WAITING_BYTES, 3 * MAX_WAITING_BYTES])


@given(st.lists(st.tuples(st.integers(0, 2), SIZES, st.booleans())), st.integers(0, 4 * MAX_WAITING_BYTES))
def test_nothing_is_over_its_bound_but_a_single_response(steps: list[tuple[int, int, bool]], limit: int) -> None:
    server = RequestMemory(limit)
    calls = [ResponseMemory(server) for _ in range(3)]
    taken: list[list[int]] = [[], [], []]
    for number, size, takes in steps:
        call, sizes = calls[number], taken[number]
        if not takes:
            if sizes:
                call.give(sizes.pop(0))
        elif call.take(size):
            sizes.append(size)
            assert sum(sizes) <= MAX_WAITING_BYTES or sum(map(bool, sizes)) == 1
        else:
            assert sum(sizes) > 0, "a call that holds nothing goes on"
        assert [each.held for each in calls] == [sum(each) for each in taken]
        assert server.held == sum(map(sum, taken))


def test_one_call_holds_up_no_other() -> None:
    server = RequestMemory(10)
    first, second = ResponseMemory(server), ResponseMemory(server)
    assert first.take(100)
    assert not first.take(1)
    assert second.take(5)
    assert not second.take(1), "over all calls there is no room, and it holds something"
    first.give(100)
    assert second.take(5)


def test_a_memory_apart_has_a_bound_of_its_own() -> None:
    server = RequestMemory(1 << 40)
    first = ResponseMemory(server)
    assert first.take(MAX_WAITING_BYTES)
    assert first.apart().take(MAX_WAITING_BYTES)
    assert server.held == 2 * MAX_WAITING_BYTES


async def test_who_waits_is_woken(autojump_clock: trio.testing.MockClock) -> None:
    memory = ResponseMemory()
    memory.take(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.wait_freed)
        nursery.start_soon(memory.wait_freed)
        await trio.testing.wait_all_tasks_blocked()
        memory.give(1)
