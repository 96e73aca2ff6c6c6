"""A sender that is held back by its own processor time, with real time: it must be reported."""

from __future__ import annotations

import time

import pytest
import trio

from tests.trioton.perf.fake import FakeCaller
from trioton.perf.caller import Call, Cycle, Take
from trioton.perf.clock import SystemClock
from trioton.perf.figures import Figures, joined
from trioton.perf.generator import LocalGenerator, Offer
from trioton.perf.limits import generator_limits
from trioton.perf.load import Closed, Load, Open

pytestmark = pytest.mark.slow


class Throttled(FakeCaller):
    """Whose every request takes 8 ms of processor time to send."""

    def send(self, call: Call, planned: int, take: Take) -> None:
        end = time.thread_time() + 0.008
        while time.thread_time() < end:
            pass
        self._clock = SystemClock()  # type: ignore[assignment]
        super().send(call, planned, take)


@pytest.mark.parametrize("load", [Open(300.0), Closed(8)], ids=str)
async def test_a_throttled_sender_is_reported(load: Load) -> None:
    """300 requests a second of 8 ms each are more than one processor has."""
    slices: list[Figures] = []
    async with trio.open_nursery() as nursery:
        generator = LocalGenerator(Throttled(nursery, lambda *_: 0.001), Cycle([Call(b"")]), SystemClock())
        async with generator.offer(Offer(load=load, slice_seconds=0.2, warmup_slices=1)) as received:
            slices = [await received.receive() for _ in range(5)][1:]
        nursery.cancel_scope.cancel()
    assert generator_limits(load, joined(slices)) != ()
