"""What a step of an ensemble costs, beside the request to its model: `python -m tests.bench.ensemble_overhead`.

Everything runs in one process without a protocol; the models answer at once, so what is left is the server's own work.
Measured are requests one after the other: to the model itself, to chains of steps, and to steps beside each other. The
overhead is what an ensemble's request takes longer than as many requests to the model, per step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import trio

from actors.ensemble.composition import Composition, NoBackend
from actors.model import Model
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
WARM_UP = 200

STEP_MODEL = ModelConfig(
    name="step",
    backend="none",
    input=(ModelInput(name="IN", data_type=DataType.FP32, dims=(-1,)),),
    output=(ModelOutput(name="OUT", data_type=DataType.FP32, dims=(-1,)),),
)


class AtOnce(Backend):
    """Answers OUT = IN without a thread, a process or a wait."""

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
    """`overhead` is in microseconds per step."""

    name: str
    steps: int
    request_us: float
    overhead_us: float


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


async def measure(requests: int, elements: int) -> list[Result]:
    """All cases, one after the other."""
    results: list[Result] = []
    async with trio.open_nursery() as nursery:
        source = ModelSource("step", 1, Path("/nowhere"), STEP_MODEL)
        model = Model(STEP_MODEL, 1, AtOnce, [InstanceSpec(source, "step_0", InstanceKind.CPU)])
        await nursery.start(model.run)
        direct = await _time(model.infer, requests, elements)
        results.append(Result("the model itself", 1, direct, 0.0))
        for name, configs in (("chain", map(chain, CHAINS)), ("side by side", map(fan, WIDTHS))):
            for config in configs:
                composition = Composition(config, lambda name, version: model)
                ensemble = Model(composition.config, 1, NoBackend, (), composition=composition)
                await nursery.start(ensemble.run)
                taken = await _time(ensemble.infer, requests, elements)
                steps = len(composition.graph.steps)
                results.append(Result(name, steps, taken, taken / steps - direct))
                ensemble.drain()
        model.drain()
    return results


async def _time(
    infer: Callable[[InferenceRequest], Awaitable[InferenceResponse]], requests: int, elements: int
) -> float:
    """Microseconds per request."""
    tensor = Tensor.from_numpy("IN", np.zeros(elements, np.float32))
    for _ in range(WARM_UP):
        await infer(InferenceRequest("any", [tensor]))
    began = time.perf_counter()
    for _ in range(requests):
        await infer(InferenceRequest("any", [tensor]))
    return (time.perf_counter() - began) / requests * 1e6


def report(results: Sequence[Result]) -> str:
    lines = [f"{'':16} {'steps':>5} {'µs per request':>15} {'overhead, µs per step':>22}"]
    for each in results:
        overhead = f"{each.overhead_us:22.1f}" if each.overhead_us else ""
        lines.append(f"{each.name:16} {each.steps:5} {each.request_us:15.1f} {overhead}".rstrip())
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure what a step of an ensemble costs.")
    parser.add_argument("--requests", type=int, default=2000, help="per case (default %(default)s)")
    parser.add_argument("--elements", type=int, default=16, help="FP32 numbers per tensor (default %(default)s)")
    options = parser.parse_args(arguments)
    print(report(trio.run(measure, options.requests, options.elements)))


if __name__ == "__main__":
    main()
