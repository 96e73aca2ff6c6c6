"""What holds an ensemble's requests up: places in flight, and bytes between the steps."""

from __future__ import annotations

import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.ensemble import limits
from protocol.errors import (
    Unavailable,
)
from tests.actors.ensemble.ensembles import (
    Toy,
    adds,
    collect,
    counts,
    ensemble_config,
    first_number,
    request,
    serving,
    step,
    toy,
)


async def test_a_step_has_no_more_requests_in_flight_than_the_limit(autojump_clock: MockClock) -> None:
    config = ensemble_config(step("a", "I=IN", "O=T"), step("b", "I=T", "O=OUT"), max_inflight_requests=2)
    a, b = toy("a", seconds=1), toy("b", seconds=3)
    async with serving(config, a, b) as model, trio.open_nursery() as calls:
        for n in range(10):
            calls.start_soon(model.infer, request(IN=n))
    assert (a.most_running, b.most_running) == (2, 2)
    assert trio.current_time() == 16, "five rounds of the slower step, after one of the other"


async def test_a_limit_holds_up_what_comes_before_it(autojump_clock: MockClock) -> None:
    """A step keeps its place until the one after it has one, so nothing piles up between them."""
    config = ensemble_config(step("a", "I=IN", "O=T"), step("b", "I=T", "O=OUT"), max_inflight_requests=1)
    a, b = toy("a"), toy("b", seconds=10)
    async with serving(config, a, b) as model, trio.open_nursery() as calls:
        for n in range(5):
            calls.start_soon(model.infer, request(IN=n))
        await wait_all_tasks_blocked()
        assert (len(a.log), len(b.log)) == (2, 1)


async def test_a_limit_slows_a_stream_down(autojump_clock: MockClock) -> None:
    config = ensemble_config(step("d", "I=IN", "O=T"), step("b", "I=T", "O=OUT"), max_inflight_requests=3)
    b = toy("b", seconds=10)
    async with serving(config, counts(), b) as model:
        assert len(await collect(model, request(IN=9))) == 9
    assert (b.most_running, trio.current_time()) == (3, 30)


async def test_inner_streams_take_their_places_in_turn(autojump_clock: MockClock) -> None:
    """With one place for the inner stream, a later one must not take it before an earlier one that is slower."""
    config = ensemble_config(
        step("d", "I=IN", "O=T"), step("s", "I=T", "O=U"), step("d2", "I=U", "O=OUT"), max_inflight_requests=4
    )
    s = toy("s", adds(1), before=lambda asked: 100 if first_number(asked) == 0 else 1)
    d2 = toy("d2", lambda x: [{"O": x["I"]}] * 200, decoupled=True)
    async with serving(config, counts(), s, d2) as model:
        got = await collect(model, request(IN=8))
    assert [each["OUT"] for each in got] == [float(n) for n in range(1, 9) for _ in range(200)]


async def test_waiting_for_a_place_is_bounded(autojump_clock: MockClock) -> None:
    config = ensemble_config(step("a", "I=IN", "O=OUT"), max_inflight_requests=1)
    async with serving(config, toy("a", seconds=10_000)) as model, trio.open_nursery() as calls:
        calls.start_soon(model.infer, request(IN=1))
        await wait_all_tasks_blocked()
        with pytest.raises(Unavailable) as caught:
            await model.infer(request(IN=2))
        assert caught.value.message == (
            "in ensemble 'e', waited 300 s for one of the 1 requests that may be in flight (max_inflight_requests) for "
            "step 0, model 'a'"
        )
        assert trio.current_time() == limits.MAX_WAIT_SECONDS


def large(bytes_each: int, seconds: float) -> Toy:
    return toy(
        "a", lambda x: {"O": np.full(bytes_each // 4, x["I"][0], np.float32)}, outputs=["O:FP32:-1"], seconds=seconds
    )


async def test_the_byte_budget_holds_requests_up(autojump_clock: MockClock) -> None:
    config = ensemble_config(
        step("a", "I=IN", "O=T"), step("b", "I=T", "O=OUT"), parameters={"max_inflight_bytes": "4000"}
    )
    b = toy("b", lambda x: {"O": x["I"][:1]}, ["I:FP32:-1"], seconds=10)
    async with serving(config, large(2000, 0), b) as model:
        await model.infer(request(IN=0))  # it learns how large a request becomes
        async with trio.open_nursery() as calls:
            for n in range(6):
                calls.start_soon(model.infer, request(IN=n))
            await wait_all_tasks_blocked()
            assert (b.running, model.pending_count) == (2, 4)
            assert model.limits.held_bytes == 4000
        assert b.most_running == 2
        assert (model.pending_count, model.limits.held_bytes) == (0, 0)


async def test_the_byte_budget_slows_a_stream_down(autojump_clock: MockClock) -> None:
    config = ensemble_config(
        step("d", "I=IN", "O=T"), step("b", "I=T", "O=OUT"), parameters={"max_inflight_bytes": "4000"}
    )
    d = toy(
        "d", lambda x: [{"O": np.full(250, n, np.float32)} for n in range(12)], outputs=["O:FP32:-1"], decoupled=True
    )
    b = toy("b", lambda x: {"O": x["I"][:1]}, ["I:FP32:-1"], seconds=10)
    async with serving(config, d, b) as model:
        assert len(await collect(model, request(IN=1))) == 12
    assert b.most_running == 3, "beside the request itself, which counts with its input"


async def test_waiting_for_room_is_bounded(autojump_clock: MockClock) -> None:
    config = ensemble_config(step("a", "I=IN", "O=OUT"), parameters={"max_inflight_bytes": "1"})
    async with serving(config, toy("a", seconds=10_000)) as model, trio.open_nursery() as calls:
        calls.start_soon(model.infer, request(IN=1))
        await wait_all_tasks_blocked()
        with pytest.raises(Unavailable) as caught:
            await model.infer(request(IN=2))
        assert caught.value.message == (
            "in ensemble 'e', waited 300 s for room among the intermediate tensors (max_inflight_bytes is 1, 4 are "
            "taken)"
        )
        assert model.pending_count == 0


async def test_a_limit_of_zero_bytes_is_none(autojump_clock: MockClock) -> None:
    config = ensemble_config(step("a", "I=IN", "O=OUT"), parameters={"max_inflight_bytes": "0"})
    a = toy("a", seconds=1)
    async with serving(config, a) as model, trio.open_nursery() as calls:
        for _ in range(50):
            calls.start_soon(model.infer, request(IN=np.zeros(1, np.float32)))
    assert a.most_running == 50
