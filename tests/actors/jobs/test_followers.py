"""Followers of jobs: told of what happens, bounded in what waits for them, forgotten when they leave."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.jobs.followers import MAX_PARTIAL_BYTES, MAX_PARTIALS, Followers
from protocol.datatypes import DataType
from protocol.messages import InferenceResponse, Tensor


def response(size: int = 1) -> InferenceResponse:
    return InferenceResponse("m", 1, [Tensor("OUT", DataType.UINT8, (size,), bytes(size))])


async def test_a_follower_is_told_of_its_job_alone(autojump_clock: MockClock) -> None:
    followers = Followers()
    with followers.follow("a") as follower:
        followers.tell("b")
        with trio.move_on_after(1) as scope:
            await follower.changed()
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower.changed)
            await wait_all_tasks_blocked()
            followers.tell("a")
        followers.tell("a")  # before it waits
        await follower.changed()
        assert len(followers) == 1
    assert len(followers) == 0
    followers.tell("a")


async def test_partials_are_taken_once_and_the_oldest_dropped(autojump_clock: MockClock) -> None:
    followers = Followers()
    with followers.follow("a") as one, followers.follow("a") as other:
        for index in range(MAX_PARTIALS + 10):
            followers.tell_partial("a", index, response())
        await one.changed()
        assert [index for index, _ in one.partials()] == list(range(10, MAX_PARTIALS + 10))
        assert one.partials() == []
        for index in range(3):
            followers.tell_partial("a", index, response(MAX_PARTIAL_BYTES // 2))
        assert [index for index, _ in one.partials()] == [1, 2]
        followers.tell_partial("a", 9, response(2 * MAX_PARTIAL_BYTES))
        assert one.partials() == []
        assert other.partials() == []


async def test_the_end_of_the_server_wakes_all(autojump_clock: MockClock) -> None:
    followers = Followers()
    with followers.follow("a") as follower:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower.changed)
            await wait_all_tasks_blocked()
            followers.end()
        assert follower.is_over
    with followers.follow("a") as late:
        await late.changed()
        assert late.is_over
