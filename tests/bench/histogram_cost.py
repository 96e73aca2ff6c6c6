"""What the latency histograms cost a request, since they are on by default: `python -m tests.bench.histogram_cost`.

Two models in one process without a protocol, one with histograms and one without, which answer at once: what is left is
the server's own work, of which the histograms are as large a part as can be. They are measured in turns, by the
processor's time, so that other work on the machine counts little; the cost is the median over the rounds of what a
request takes longer with histograms.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import trio
from msgspec.structs import replace

from actors.metrics.latencies import HistogramDetail
from actors.model.model import Model
from backends.interface import InstanceSpec, ModelSource
from protocol.messages import InferenceRequest, Tensor
from repository.model_config import InstanceKind, ModelDynamicBatching
from tests.bench.ensemble_overhead import STEP_MODEL, AtOnce
from tests.bench.machine import this_machine
from tests.bench.report import replace_results
from tests.bench.table import table

CONCURRENCIES = (1, 16, 64)
ROUNDS = 41
REQUESTS = 640
WARM_UP = 200
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
BEGIN = "<!-- histograms: begin (written by python -m tests.bench.histogram_cost --write) -->"
END = "<!-- histograms: end -->"


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one number of requests in flight: the medians of the throughput per second of processor time, with and without
    histograms, and of the cost of a request in microseconds."""

    concurrency: int
    throughput_with: float
    throughput_without: float
    cost_us: float

    @property
    def share(self) -> float:
        """The cost as a part of what a request takes without histograms."""
        return self.cost_us * self.throughput_without / 1e6


async def measure(rounds: int = ROUNDS, requests: int = REQUESTS) -> list[Cost]:
    async with trio.open_nursery() as nursery:
        models = _model(HistogramDetail.FEW), _model(HistogramDetail.NONE)
        for model in models:
            await nursery.start(model.run)
            await _seconds(model, 1, WARM_UP)
        costs = [await _cost(*models, concurrency, rounds, requests) for concurrency in CONCURRENCIES]
        for model in models:
            model.drain()
    return costs


def _model(histograms: HistogramDetail) -> Model:
    config = replace(STEP_MODEL, max_batch_size=64, dynamic_batching=ModelDynamicBatching())
    source = ModelSource("step", 1, Path("/nowhere"), config)
    spec = InstanceSpec(source, "step_0", InstanceKind.CPU)
    return Model(config, 1, AtOnce, [spec], histograms=histograms)


async def _cost(with_them: Model, without: Model, concurrency: int, rounds: int, requests: int) -> Cost:
    seconds: dict[Model, list[float]] = {with_them: [], without: []}
    for number in range(rounds):
        order = (with_them, without) if number % 2 else (without, with_them)
        for model in order:
            seconds[model].append(await _seconds(model, concurrency, requests) / requests)
    differences = [more - less for more, less in zip(seconds[with_them], seconds[without], strict=True)]
    return Cost(concurrency, 1 / median(seconds[with_them]), 1 / median(seconds[without]), median(differences) * 1e6)


async def _seconds(model: Model, concurrency: int, requests: int) -> float:
    """The processor's time that so many requests take, as many at a time as `concurrency` says."""
    tensor = Tensor.from_numpy("IN", np.zeros((1, 16), np.float32))

    async def caller() -> None:
        for _ in range(requests // concurrency):
            await model.infer(InferenceRequest("step", [tensor]))

    began = time.thread_time()
    async with trio.open_nursery() as callers:
        for _ in range(concurrency):
            callers.start_soon(caller)
    return time.thread_time() - began


def report(costs: Sequence[Cost]) -> str:
    """The table, and under what conditions it was made."""
    machine = this_machine()
    header = ["requests in flight", "with, per s", "without, per s", "cost per request, µs", "of the core's work"]
    lines = [
        [
            str(cost.concurrency),
            f"{cost.throughput_with:,.0f}",
            f"{cost.throughput_without:,.0f}",
            f"{cost.cost_us:.2f}",
            f"{cost.share:.1%}",
        ]
        for cost in costs
    ]
    conditions = (
        f"{machine.date}, {machine.processor}; load average {machine.load_average:.2f} on {machine.cores} cores."
    )
    return f"{conditions}\n\n{table(header, lines, text_columns=0)}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure what the latency histograms cost a request.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each model (default %(default)s)")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="per turn (default %(default)s)")
    parser.add_argument("--write", action="store_true", help=f"put the result into {PAGE.parent.name}/{PAGE.name}")
    options = parser.parse_args(arguments)
    text = report(trio.run(measure, options.rounds, options.requests))
    print(text)
    if options.write:
        PAGE.write_text(replace_results(PAGE.read_text(), text, BEGIN, END))


if __name__ == "__main__":
    main()
