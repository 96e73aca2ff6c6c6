"""Closed and open loops in virtual time, against models whose times are known."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from tests.trioton.perf.fake import SECOND, FakeCaller
from trioton.perf.arrivals import Constant, Listed
from trioton.perf.caller import Call, Cycle, Part, Result
from trioton.perf.clock import TrioClock
from trioton.perf.figures import Figures, joined
from trioton.perf.generator import LocalGenerator, Offer
from trioton.perf.load import Closed, Goodput, Load, Open


async def offered(
    load: Load,
    took: Callable[[int, float], float],
    slices: int = 50,
    *,
    warmup_slices: int = 5,
    source: Cycle | None = None,
    observe: Callable[[Result], None] | None = None,
    requests: int | None = None,
    late: float = 0.0,
    fails: Callable[[int], str] = lambda _: "",
    callers: list[FakeCaller] | None = None,
    goodput: Goodput | None = None,
    part: Part = Part(),  # noqa: B008 (frozen)
) -> Figures:
    """What the slices after the warm-up amount to."""
    async with trio.open_nursery() as nursery:
        caller = FakeCaller(nursery, took, late=late, fails=fails)
        if callers is not None:
            callers.append(caller)
        generator = LocalGenerator(caller, source or Cycle([Call(b"")]), TrioClock(), part, lambda: 0.0)
        offer = Offer(load=load, slice_seconds=0.1, warmup_slices=warmup_slices, requests=requests, goodput=goodput)
        async with generator.offer(offer, observe) as received:
            found = [each async for each in itertools_of(received, warmup_slices + slices)]
        nursery.cancel_scope.cancel()
    return joined(found[warmup_slices:])


async def itertools_of(channel: trio.MemoryReceiveChannel[Figures], count: int):  # type: ignore[no-untyped-def]
    for _ in range(count):
        try:
            yield await channel.receive()
        except trio.EndOfChannel:
            return


@pytest.mark.parametrize("concurrency", [1, 3, 16])
async def test_a_closed_loop_keeps_so_many_in_flight(autojump_clock: MockClock, concurrency: int) -> None:
    found = await offered(Closed(concurrency), lambda *_: 0.01)
    assert found.rate == pytest.approx(concurrency / 0.01, rel=0.01)
    assert found.in_flight == pytest.approx(concurrency, rel=0.001)
    assert found.latency.percentile(99) == pytest.approx(0.01 * SECOND, rel=0.01)


async def test_an_open_loop_sends_when_it_is_planned(autojump_clock: MockClock) -> None:
    callers: list[FakeCaller] = []
    began = trio.current_time()
    await offered(Open(50, Constant()), lambda *_: 0.5, callers=callers)
    expected = [began + 0.02 * index for index in range(1, 201)]
    assert callers[0].sent[:200] == pytest.approx(expected, abs=1e-6)


async def test_an_open_loop_follows_a_list_of_gaps(autojump_clock: MockClock) -> None:
    callers: list[FakeCaller] = []
    began = trio.current_time()
    await offered(Open(0, Listed((0.05, 0.0, 0.15))), lambda *_: 0.01, callers=callers)
    sent = [time - began for time in callers[0].sent[:6]]
    assert sent == pytest.approx([0.05, 0.05, 0.2, 0.25, 0.25, 0.4], abs=1e-6)


class StallingModel:
    """One request after the other, `service` seconds each, with a stop of `stall` seconds every `every` seconds."""

    def __init__(self, service: float, stall: float, every: float) -> None:
        self._service, self._stall, self._every = service, stall, every
        self._start: float | None = None
        self._free = 0.0

    def __call__(self, number: int, now: float) -> float:
        if self._start is None:
            self._start = now
        begin = max(now, self._free)
        into = (begin - self._start) % self._every
        if into < self._stall:
            begin += self._stall - into
        self._free = begin + self._service
        return self._free - now


async def test_percentiles_of_a_model_that_stalls_are_those_of_the_formula(autojump_clock: MockClock) -> None:
    """At rate r with a stall of s in every T, a request that comes t into the stall waits for s - t, and then for those
    before it: the queue has r·s requests, and shrinks by 1 - r·c in a second (service c). So the latency at t into the
    period falls linearly from s + c to c, over s / (1 - r·c); all others take c."""
    rate, service, stall, every = 100.0, 0.001, 1.0, 2.0
    found = await offered(Open(rate, Constant()), StallingModel(service, stall, every), slices=400, warmup_slices=20)
    busy = stall / (1 - rate * service)  # of each period, the time in which requests wait
    for percent in (50, 60, 75, 90, 95, 99):
        share = 1 - percent / 100  # of requests that take longer
        expected = service + (stall * (1 - share * every / busy) if share * every < busy else 0.0)
        assert found.latency.percentile(percent) / SECOND == pytest.approx(expected, rel=0.05), percent
    mean = service + stall / 2 * busy / every
    assert found.latency.mean / SECOND == pytest.approx(mean, rel=0.05)


async def test_a_closed_loop_sees_only_the_stalls_that_hit_its_own_requests(autojump_clock: MockClock) -> None:
    """Which is why the open loop is there: the same model, and hardly a slow request."""
    found = await offered(Closed(1), StallingModel(0.001, 1.0, 2.0), slices=400, warmup_slices=20)
    assert found.latency.percentile(99) / SECOND < 0.01
    assert found.latency.greatest / SECOND == pytest.approx(1.0, rel=0.05)


async def test_latency_counts_from_the_plan_and_beside_it_from_sending(autojump_clock: MockClock) -> None:
    found = await offered(Open(20, Constant()), lambda *_: 0.01, late=0.03)
    assert found.latency.percentile(50) / SECOND == pytest.approx(0.04, rel=0.01)
    assert found.service.percentile(50) / SECOND == pytest.approx(0.01, rel=0.01)
    assert found.lateness.percentile(50) / SECOND == pytest.approx(0.03, rel=0.01)


@pytest.mark.parametrize("load", [Closed(1), Closed(8), Open(40.0), Open(400.0)])
async def test_littles_law_holds(autojump_clock: MockClock, load: Load) -> None:
    """Requests in flight are the rate times the latency; the time in flight is not summed from latencies."""
    drawn = random.Random(11)
    found = await offered(load, lambda *_: drawn.expovariate(50), slices=300, warmup_slices=10)
    assert found.in_flight == pytest.approx(found.rate * found.latency.mean / SECOND, rel=0.03)


async def test_a_server_that_falls_behind_piles_up_no_more_than_is_allowed(autojump_clock: MockClock) -> None:
    callers: list[FakeCaller] = []
    found = await offered(Open(100, Constant(), most_in_flight=5), lambda *_: 1.0, slices=30, callers=callers)
    assert found.rate == pytest.approx(5, rel=0.2)
    assert found.latency.percentile(99) > 2 * found.service.percentile(99)  # the plan is not forgotten
    assert found.in_flight > 50


async def test_results_within_a_send_do_not_nest(autojump_clock: MockClock) -> None:
    """A caller that answers at once must not end in a recursion."""

    class AtOnce(FakeCaller):
        def send(self, call: Call, planned: int, take: Callable[[Result], None]) -> None:
            now = TrioClock().now()
            self.sent.append(0)
            if len(self.sent) > 5000:
                self._nursery.start_soon(self._answer, 0, call, planned, take)
            else:
                take(Result(call, planned, now, now, now))

    async with trio.open_nursery() as nursery:
        caller = AtOnce(nursery, lambda *_: 0.01)
        generator = LocalGenerator(caller, Cycle([Call(b"")]), TrioClock())
        async with generator.offer(Offer(load=Closed(2), slice_seconds=0.1)) as received:
            assert (await received.receive()).succeeded >= 5000
        nursery.cancel_scope.cancel()


async def test_after_an_error_a_closed_loop_waits(autojump_clock: MockClock) -> None:
    found = await offered(Closed(2), lambda *_: 0.0, fails=lambda number: "refused", slices=10)
    assert found.errors == {"refused": pytest.approx(200, rel=0.1)}
    assert found.succeeded == found.latency.count == 0


async def test_a_source_that_fails_ends_the_load(autojump_clock: MockClock) -> None:
    class Broken(Cycle):
        def ended(self, result: Result) -> None:
            raise ZeroDivisionError

    with pytest.RaisesGroup(ZeroDivisionError):  # that of the nursery of `offered`
        await offered(Closed(2), lambda *_: 0.01, source=Broken([Call(b"")]))


class Steps:
    """Implements `Source`: a few sequences, each of which waits for its answer."""

    def __init__(self, count: int) -> None:
        self.free = list(range(count))
        self.in_flight: set[int] = set()

    def take(self) -> Call | None:
        if not self.free:
            return None
        key = self.free.pop(0)
        assert key not in self.in_flight
        self.in_flight.add(key)
        return Call(b"", key=key)

    def ended(self, result: Result) -> None:
        self.in_flight.remove(result.call.key)
        self.free.append(result.call.key)


@pytest.mark.parametrize("load", [Closed(8), Open(1000.0)])
async def test_a_sequence_waits_for_its_answer(autojump_clock: MockClock, load: Load) -> None:
    """Three sequences: no more than three requests at a time, whatever the load."""
    found = await offered(load, lambda *_: 0.01, source=Steps(3))  # type: ignore[arg-type]
    assert found.rate == pytest.approx(300, rel=0.05)
    assert found.service.percentile(99) / SECOND == pytest.approx(0.01, rel=0.01)


async def test_so_many_requests_and_no_more_are_counted(autojump_clock: MockClock) -> None:
    seen: list[Result] = []
    found = await offered(Closed(4), lambda *_: 0.01, requests=250, observe=seen.append, slices=20)
    assert found.succeeded == len(seen) == 250
    assert found.seconds == pytest.approx(0.62, abs=0.02)


async def test_the_warm_up_is_not_observed(autojump_clock: MockClock) -> None:
    seen: list[Result] = []
    began = trio.current_time()
    await offered(Closed(1), lambda *_: 0.01, observe=seen.append, warmup_slices=5, slices=2)
    assert min(result.last for result in seen) / SECOND - began >= 0.5
    assert len(seen) == pytest.approx(20, abs=1)


async def test_requests_in_flight_are_waited_for(autojump_clock: MockClock) -> None:
    callers: list[FakeCaller] = []
    await offered(Closed(4), lambda *_: 2.0, callers=callers, slices=1)
    assert callers[0].abandoned == 0


async def test_but_not_for_ever(autojump_clock: MockClock) -> None:
    callers: list[FakeCaller] = []
    with trio.fail_after(60):
        await offered(Closed(4), lambda *_: 1e6, callers=callers, slices=1)
    assert callers[0].abandoned == 1


async def test_senders_share_a_load(autojump_clock: MockClock) -> None:
    parts = [await offered(Closed(10), lambda *_: 0.01, part=Part(index, 3)) for index in range(3)]
    assert [round(found.in_flight) for found in parts] == [4, 3, 3]


async def test_requests_that_keep_the_bounds_are_good(autojump_clock: MockClock) -> None:
    times = itertools.cycle([0.01, 0.01, 0.01, 0.05])
    found = await offered(Closed(1), lambda *_: next(times), goodput=Goodput(latency=0.02), slices=100)
    assert found.good / found.succeeded == pytest.approx(0.75, abs=0.02)


async def test_requests_that_were_never_sent_do_not_stay_in_flight(autojump_clock: MockClock) -> None:
    found = await offered(Open(100, Constant(), most_in_flight=1), partial(lambda *_: 0.5), slices=5)
    assert found.sent <= 2
