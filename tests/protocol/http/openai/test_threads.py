"""Work on bodies in threads: large ones take turns, small ones do not wait for them."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
import trio.testing

from protocol.http.exchange import HttpRequest
from protocol.http.openai.threads import LARGE_ABOVE, in_thread

LARGE = b"x" * (LARGE_ABOVE + 1)


def request_of(body: bytes) -> HttpRequest:
    """Nothing else of it is looked at."""
    nothing: Any = None
    return HttpRequest(nothing, nothing, {}, {}, body, nothing, nothing, nothing)


async def test_two_large_ones_at_a_time() -> None:
    requests = [request_of(LARGE) for _ in range(3)]
    go_on, done = threading.Event(), [0, 0, 0]

    async def run(place: int) -> None:
        done[place] = await in_thread(requests[place], lambda: go_on.wait() and 1)

    async with trio.open_nursery() as nursery:
        for place in range(3):
            nursery.start_soon(run, place)
            await trio.testing.wait_all_tasks_blocked()
        assert [each.turn is not None for each in requests] == [True, True, False]
        assert await in_thread(request_of(b"small"), lambda: "at once") == "at once"
        go_on.set()
        while sum(done) < 2:  # noqa: ASYNC110 (a thread sets no event)
            await trio.sleep(0.001)
        await trio.testing.wait_all_tasks_blocked()
        assert done == [1, 1, 0], "a turn lasts longer than the work"
        assert await in_thread(requests[0], lambda: "again") == "again"
        requests[0].end_turn()
    assert done == [1, 1, 1]
    for each in requests:
        each.end_turn()
        assert each.turn is None


async def test_a_client_that_leaves_gives_its_place_up() -> None:
    requests = [request_of(LARGE) for _ in range(3)]
    for each in requests[:2]:
        await in_thread(each, lambda: None)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, requests[2], lambda: None)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert requests[2].turn is None
    requests[0].end_turn()
    with trio.fail_after(5):
        await in_thread(request_of(LARGE), lambda: None)


async def test_work_that_fails_keeps_its_turn_until_the_request_ends() -> None:
    request = request_of(LARGE)

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await in_thread(request, fail)
    assert request.turn is not None
    request.end_turn()
    request.end_turn()
