"""What an ensemble costs, and each of its steps: `python -m tests.bench.ensemble_overhead`.

Everything runs in one process and one thread without a protocol, and the models answer at once, so what is left is the
server's own work. Measured are requests one after the other: to the model itself, to chains of steps, and to steps
beside each other. All cases take turns, round after round; figures are medians over the rounds.

Times are those of the processor, not of the clock: nothing here waits for anything, and on a machine that is shared the
clock would add what other programs take.

- A further step is what the request takes longer than one to a chain of one step, for each step after the first: the
  whole way of the step's request to its model and back, and what the ensemble does for it.
- The overhead is what is left of that without what the same request costs when it goes to the model itself; of the
  chain of one step, what the ensemble costs as such.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import trio

from actors.ensemble.composition import Composition
from actors.ensemble.ensemble import Ensemble
from actors.model.model import Model
from actors.model.servable import Servable
from backends.interface import Backend, BatchResult, BatchTiming, InstanceSpec, ModelSource
from protocol.datatypes import DataType
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from repository.model_config import (
    EnsembleStep,
    InstanceKind,
    ModelConfig,
    ModelEnsembling,
    ModelInput,
    ModelOutput,
)

CHAINS = (1, 2, 4, 8, 16)
WIDTHS = (2, 4, 8)
ROUNDS = 7
DIRECT, CHAIN, FAN = "the model itself", "chain", "side by side"

STEP_MODEL = ModelConfig(
    name="step",
    backend="none",
    input=(ModelInput(name="IN", data_type=DataType.FP32, dims=(-1,)),),
    output=(ModelOutput(name="OUT", data_type=DataType.FP32, dims=(-1,)),),
)


class AtOnce(Backend):
    """Replies OUT = IN without a thread, a process or a wait."""

    async def load(self) -> None:
        await trio.lowlevel.checkpoint()

    async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        responses = []
        for request in requests:
            taken = request.inputs[0]
            output = Tensor("OUT", taken.datatype, taken.shape, taken.data)
            responses.append(InferenceResponse("step", 1, [output], request.id))
        return BatchResult(responses, BatchTiming(0, 0, 0))


@dataclass(frozen=True)
class Result:
    """`request_us` is the processor's time in microseconds per request."""

    name: str
    steps: int
    request_us: float

    def further_step_us(self, one_step: Result) -> float | None:
        """What each step after the first adds; None without such a step."""
        return (self.request_us - one_step.request_us) / (self.steps - 1) if self.steps > 1 else None

    def overhead_us(self, one_step: Result, direct: Result) -> float:
        """What a further step, or the first one, takes beside the request to its model."""
        further = self.further_step_us(one_step)
        return (self.request_us if further is None else further) - direct.request_us


def chain(length: int) -> ModelConfig:
    """IN through so many steps to OUT."""
    names = ["IN", *(f"T{place}" for place in range(1, length)), "OUT"]
    return _ensemble([_step(taken, given) for taken, given in pairwise(names)], ["OUT"])


def fan(width: int) -> ModelConfig:
    """So many steps beside each other, each with an output of its own."""
    outputs = [f"OUT{place}" for place in range(width)]
    return _ensemble([_step("IN", output) for output in outputs], outputs)


def _step(taken: str, given: str) -> EnsembleStep:
    return EnsembleStep(model_name="step", model_version=-1, input_map={"IN": taken}, output_map={"OUT": given})


def _ensemble(steps: Sequence[EnsembleStep], outputs: Sequence[str]) -> ModelConfig:
    return ModelConfig(
        name="ensemble",
        platform="ensemble",
        input=(ModelInput(name="IN", data_type=DataType.FP32, dims=(-1,)),),
        output=tuple(ModelOutput(name=name, data_type=DataType.FP32, dims=(-1,)) for name in outputs),
        ensemble_scheduling=ModelEnsembling(step=tuple(steps)),
    )


async def measure(requests: int, elements: int, rounds: int = ROUNDS) -> list[Result]:
    """All cases in turns, so many requests for each in a round: the model itself, then chains, then fans."""
    async with trio.open_nursery() as nursery:
        source = ModelSource("step", 1, Path("/nowhere"), STEP_MODEL)
        model = Model(STEP_MODEL, 1, AtOnce, [InstanceSpec(source, "step_0", InstanceKind.CPU)])
        await nursery.start(model.run)
        cases: list[tuple[str, int, Servable]] = [(DIRECT, 1, model)]
        for name, configs in ((CHAIN, map(chain, CHAINS)), (FAN, map(fan, WIDTHS))):
            for config in configs:
                composition = Composition(config, lambda name, version: model)
                ensemble = Ensemble(composition, 1)
                await nursery.start(ensemble.run)
                cases.append((name, len(composition.graph.steps), ensemble))
        taken: list[list[float]] = [[] for _ in cases]
        for number in range(rounds + 1):
            for (_, _, each), times in zip(cases, taken, strict=True):
                time_us = await _time(each.infer, requests, elements)
                if number > 0:  # the first round warms up
                    times.append(time_us)
        for _, _, each in reversed(cases):
            each.drain()
    return [Result(name, steps, median(times)) for (name, steps, _), times in zip(cases, taken, strict=True)]


async def _time(
    infer: Callable[[InferenceRequest], Awaitable[InferenceResponse]], requests: int, elements: int
) -> float:
    """Microseconds of the processor per request."""
    tensor = Tensor.from_numpy("IN", np.zeros(elements, np.float32))
    began = time.process_time()
    for _ in range(requests):
        await infer(InferenceRequest("any", [tensor]))
    return (time.process_time() - began) / requests * 1e6


def report(results: Sequence[Result]) -> str:
    """A table of `measure`'s results."""
    (direct,) = (each for each in results if each.name == DIRECT)
    (one_step,) = (each for each in results if each.name == CHAIN and each.steps == 1)
    lines = [f"{'':16} {'steps':>5} {'µs per request':>15} {'µs per further step':>20} {'overhead, µs per step':>22}"]
    for each in results:
        further = each.further_step_us(one_step)
        columns = [
            f"{each.name:16} {each.steps:5} {each.request_us:15.1f}",
            f"{'' if further is None else f'{further:.1f}':>20}",
            f"{'' if each is direct else f'{each.overhead_us(one_step, direct):.1f}':>22}",
        ]
        lines.append(" ".join(columns).rstrip())
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure what a step of an ensemble costs.")
    parser.add_argument("--requests", type=int, default=500, help="per case and round (default %(default)s)")
    parser.add_argument("--elements", type=int, default=16, help="FP32 numbers per tensor (default %(default)s)")
    options = parser.parse_args(arguments)
    print(report(trio.run(measure, options.requests, options.elements)))


if __name__ == "__main__":
    main()
