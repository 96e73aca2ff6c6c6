"""The tasks of a stream's requests: the order in which those begin, and what becomes of the tasks."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from protocol.grpc.inference import request_tasks
from protocol.grpc.inference.request_tasks import RequestTasks


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40))
def test_requests_begin_in_their_order(requests: list[tuple[int, bool]]) -> None:
    """However long each takes, and whether others have ended when it comes."""
    begun: list[int] = []

    async def serve(number: int) -> None:
        begun.append(number)
        await trio.sleep(requests[number][0])

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            tasks = RequestTasks(nursery, serve)
            for number, (_, is_followed_by_a_pause) in enumerate(requests):
                tasks.start(number)
                if is_followed_by_a_pause:
                    await trio.sleep(1)
            tasks.end()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert begun == list(range(len(requests)))


async def test_a_task_is_used_again(autojump_clock: trio.testing.MockClock) -> None:
    used: list[trio.lowlevel.Task] = []

    async def serve(number: int) -> None:
        used.append(trio.lowlevel.current_task())
        await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        tasks = RequestTasks(nursery, serve)
        tasks.start(0)
        tasks.start(1)
        await trio.testing.wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 2
        await trio.sleep(2)
        tasks.start(2)
        await trio.sleep(2)
        assert len(nursery.child_tasks) == 2
        tasks.end()
    assert used[2] in used[:2]


async def test_a_nursery_waits_for_the_requests_and_not_for_idle_tasks(autojump_clock: trio.testing.MockClock) -> None:
    served: list[int] = []

    async def serve(number: int) -> None:
        await trio.sleep(number)
        served.append(number)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            tasks = RequestTasks(nursery, serve)
            for number in (5, 1):
                tasks.start(number)
            await trio.sleep(2)
            tasks.end()
    assert served == [1, 5]


async def test_no_more_tasks_wait_than_are_of_use(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_tasks, "MAX_IDLE", 3)
    async with trio.open_nursery() as nursery:
        tasks = RequestTasks(nursery, trio.sleep)
        for _ in range(10):
            tasks.start(1)
        await trio.sleep(2)
        assert len(nursery.child_tasks) == 3
        tasks.end()


async def test_what_comes_after_the_end_is_not_started(autojump_clock: trio.testing.MockClock) -> None:
    """The nursery may have closed, and closed nurseries take no tasks."""
    served: list[int] = []

    async def serve(number: int) -> None:
        served.append(number)

    async with trio.open_nursery() as nursery:
        tasks = RequestTasks(nursery, serve)
        tasks.end()
        tasks.start(0)
    tasks.start(1)
    assert served == []
