"""Trials: windows of one load, until three of them are alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from trioton.perf.caller import Control, ModelDescription, Result, TargetError
from trioton.perf.data.responses import mismatch
from trioton.perf.figures import Figures, joined
from trioton.perf.generator import Generator, Offer
from trioton.perf.load import Load
from trioton.perf.server_side import Snapshot, server_figures, snapshot
from trioton.perf_analyzer.exchanges import ExchangeLog
from trioton.perf_analyzer.gpu_metrics import GpuSamples
from trioton.perf_analyzer.options import Options
from trioton.perf_analyzer.profile import Profile
from trioton.perf_analyzer.windows import ALIKE, Rules, Verdict, result_of
from trioton.perf_analyzer.wiring import wire_of

# A sentence that Model Analyzer looks for, to try again with larger windows.
NOTHING_ENDED = "No valid requests recorded within time interval. Please use a larger time window."


class MeasurementFailed(Exception):
    """Requests have failed, or none has ended: there is nothing to report."""


class NotStable(Exception):
    """No three windows were alike."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What measures one model. `metrics` is None where nobody asks for GPU figures."""

    options: Options
    description: ModelDescription
    generator: Generator
    control: Control
    metrics: Control | None = None

    async def profile(self, level: float, load: Load) -> Profile:
        """Measure a load.

        Raises:
            NotStable: the windows differ too much.
            MeasurementFailed: a request has failed, or none has ended.
            TargetError: the server is gone.
        """
        if self.options.warmup_requests:
            await self._warm_up(load)
        log = ExchangeLog(wire_of(self.options)) if self.options.export is not None else None
        samples = GpuSamples()
        async with self._sampled(samples):
            run = _Run(self, Rules.of(self.options), log)
            await run.measure(load)
        return Profile(
            level=level,
            is_rate=self.options.is_rate,
            figures=result_of(run.windows),
            boundaries=run.boundaries[-ALIKE - 1 :],
            server=server_figures(run.marks[-ALIKE - 1 :][0], run.marks[-1], self.description.name),
            versions=run_versions(run.marks[0], run.marks[-1]),
            gpu=samples.figures() if self.metrics is not None else None,
            exchanges=[] if log is None else [each for window in log.windows for each in window],
            is_decoupled=self.description.is_decoupled,
            has_cache=bool((self.description.config.get("response_cache") or {}).get("enable")),
        )

    async def _warm_up(self, load: Load) -> None:
        offer = Offer(load=load, slice_seconds=0.1, requests=self.options.warmup_requests)
        async with self.generator.offer(offer) as slices:
            async for _ in slices:
                pass

    @asynccontextmanager
    async def _sampled(self, samples: GpuSamples) -> AsyncIterator[None]:
        """With the metrics read every so often while the block lasts."""
        if self.metrics is None:
            yield
            return
        failure: TargetError | None = None

        async def sample(metrics: Control) -> None:
            nonlocal failure
            while True:
                try:
                    samples.add(await metrics.metrics())
                except TargetError as error:
                    failure = error
                await trio.sleep(self.options.metrics_seconds)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(sample, self.metrics)
            yield
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure


class _Run:
    """One measurement: its windows, and what the server has counted at their ends."""

    def __init__(self, bench: Bench, rules: Rules, log: ExchangeLog | None) -> None:
        self._bench, self._rules, self._log = bench, rules, log
        self._wire = wire_of(bench.options)
        self._mismatches = 0
        self._mismatch = ""
        self.windows: list[Figures] = []
        self.marks: list[Snapshot | None] = []
        self.boundaries: list[int] = []

    async def measure(self, load: Load) -> None:
        """See `Bench.profile`."""
        options = self._bench.options
        requests = options.request_count or None
        offer = Offer(load=load, slice_seconds=self._rules.slice_seconds, requests=requests)
        await self._mark()
        slices: list[Figures] = []
        async with self._bench.generator.offer(offer, self._observe) as received:
            async for figures in received:
                slices.append(figures)
                if requests is None and self._rules.ends_window(slices):
                    await self._end_window(slices)
                    slices = []
                    if self._rules.judge(self.windows) is not Verdict.GOES_ON:
                        break
        if requests is not None:
            await self._end_window(slices)
        elif self._rules.judge(self.windows) is not Verdict.STABLE:
            raise NotStable

    def _observe(self, result: Result) -> None:
        if result.responses and (text := mismatch(self._wire, result)):
            self._mismatches += 1
            self._mismatch = text
        if self._log is not None:
            self._log.take(result)

    async def _end_window(self, slices: list[Figures]) -> None:
        window = joined(slices)
        if window.errors:
            text, count = max(window.errors.items(), key=lambda item: item[1])
            raise MeasurementFailed(f"{window.failed} requests have failed, {count} of them with: {text}")
        if self._mismatches:
            raise MeasurementFailed(f"Output doesn't match expected output: {self._mismatches} times, {self._mismatch}")
        if not window.succeeded:
            raise MeasurementFailed(NOTHING_ENDED)
        self.windows.append(window)
        if self._log is not None:
            self._log.end_window(ALIKE)
        await self._mark()

    async def _mark(self) -> None:
        log = self._log
        if log is not None:
            self.boundaries.append(log.now())
        self.marks.append(await snapshot(self._bench.control, self._bench.description))


def run_versions(before: Snapshot | None, after: Snapshot | None) -> dict[str, str]:
    """Of each model the version that has run most between two moments."""
    if before is None or after is None:
        return {}
    found = {}
    for model, versions in after.statistics.items():
        old = {each.version: each.inference_count for each in before.statistics.get(model, ())}
        if versions:
            found[model] = max(versions, key=lambda each: each.inference_count - old.get(each.version, 0)).version
    return found
