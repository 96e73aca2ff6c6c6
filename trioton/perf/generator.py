"""Generator: offers loads with one caller in this process, and gives the figures slice by slice."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import trio

from trioton.perf.caller import Caller, Part, Result, Source
from trioton.perf.clock import Clock
from trioton.perf.figures import Figures
from trioton.perf.load import Goodput, Load
from trioton.perf.loops import loop_of
from trioton.perf.recorder import Recorder

# How long requests in flight are waited for when a load ends.
_DRAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One load and how it is cut.

    Attributes:
        warmup_slices: so many at first are not counted, nor observed.
        requests: so many are counted after those, and no more.
        start: when it begins, on `time.perf_counter_ns`; 0 for at once.
    """

    load: Load
    slice_seconds: float
    warmup_slices: int = 0
    requests: int | None = None
    goodput: Goodput | None = None
    start: int = 0


class Generator(Protocol):
    """One sender, or several as one."""

    def offer(
        self, offer: Offer, observe: Callable[[Result], None] | None = None
    ) -> AbstractAsyncContextManager[trio.MemoryReceiveChannel[Figures]]:
        """Offer a load while the block lasts: the figures of one slice after the other, those of the warm-up too.
        At the end of the block requests in flight are waited for.

        Raises:
            TargetError: the target is gone.
        """
        ...


class LocalGenerator:
    """Implements `Generator` with one caller. The caller's owner closes it. `processor` is the processor time of this
    sender, in seconds."""

    def __init__(
        self,
        caller: Caller,
        source: Source,
        clock: Clock,
        part: Part = Part(),  # noqa: B008 (frozen)
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        self._caller, self._source, self._clock, self._part = caller, source, clock, part
        self._processor = processor

    @asynccontextmanager
    async def offer(
        self, offer: Offer, observe: Callable[[Result], None] | None = None
    ) -> AsyncIterator[trio.MemoryReceiveChannel[Figures]]:
        if offer.start:
            await trio.sleep(max(0, offer.start - self._clock.now()) / 1e9)
        recorder = Recorder(self._clock.now, self._processor, offer.goodput)
        loop = loop_of(offer.load, self._part, self._caller, self._source, recorder, self._clock)
        to_reader, slices = trio.open_memory_channel[Figures](64)
        failure: Exception | None = None
        has_ended = trio.Event()

        async def run() -> None:
            nonlocal failure
            try:
                await loop.run()
            except Exception as error:  # raised below, outside of the nursery
                failure = error
                nursery.cancel_scope.cancel()
            has_ended.set()

        async with slices, trio.open_nursery() as nursery:
            nursery.start_soon(run)
            cutting = trio.CancelScope()
            nursery.start_soon(self._cut, offer, observe, recorder, to_reader, cutting)
            yield slices
            recorder.observe = None
            cutting.cancel()
            loop.stop()
            with trio.move_on_after(_DRAIN_SECONDS) as scope:
                await has_ended.wait()
            if scope.cancelled_caught:
                self._caller.abandon()
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _cut(
        self,
        offer: Offer,
        observe: Callable[[Result], None] | None,
        recorder: Recorder,
        to_reader: trio.MemorySendChannel[Figures],
        scope: trio.CancelScope,
    ) -> None:
        start = trio.current_time()
        count = 0

        def begin_if_warm() -> None:
            if count == offer.warmup_slices:
                recorder.observe = observe
                if offer.requests is not None:
                    share = offer.requests // self._part.count
                    recorder.limit_to(share + (self._part.index < offer.requests % self._part.count))

        begin_if_warm()
        with scope, to_reader:
            while not recorder.is_full.is_set():
                count += 1
                with trio.move_on_at(start + count * offer.slice_seconds):
                    await recorder.is_full.wait()
                figures = recorder.cut()
                begin_if_warm()
                await to_reader.send(figures)
