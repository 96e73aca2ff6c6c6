"""What one batch costs the exchange with a Python model: `python -m tests.bench.worker_exchange`.

The backend alone, without edges and scheduler, with the benchmark's `add_sub`: in a worker process, and in this process
as `ISOLATION` `in_process` and `in_loop` have it. Figures are processor time, each the least of many bursts, since
whatever else runs on the machine only adds. The worker's includes the model's own `execute`.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from backends.interface import STARTED, BatchResult, InstanceSpec, ModelSource
from backends.python import PythonBackend
from protocol.datatypes import DataType
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from repository.model_config import ModelConfig, ModelInput, ModelOutput, ModelParameter

MODEL = Path(__file__).parent / "models" / "add_sub"
SIZE = 16
BATCHES = (1, 4, 16, 64)
_EXCHANGES = 20  # of one burst


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of processor time for each request: here, and in the worker's process."""

    server: float
    worker: float


def _config(isolation: str) -> ModelConfig:
    def names(kind: str) -> list[str]:
        return [f"{kind}{index}" for index in range(2)]

    return ModelConfig(
        name="add_sub",
        backend="python",
        max_batch_size=64,
        input=tuple(ModelInput(name=name, data_type=DataType.FP32, dims=(SIZE,)) for name in names("INPUT")),
        output=tuple(ModelOutput(name=name, data_type=DataType.FP32, dims=(SIZE,)) for name in names("OUTPUT")),
        default_model_filename="model.py",
        parameters={"ISOLATION": ModelParameter(string_value=isolation)},
    )


def _request() -> InferenceRequest:
    body = memoryview(bytes(8 * SIZE))
    left = Tensor("INPUT0", DataType.FP32, (1, SIZE), body[: 4 * SIZE])
    right = Tensor("INPUT1", DataType.FP32, (1, SIZE), body[4 * SIZE :])
    return InferenceRequest("add_sub", [left, right])


def _worker_seconds(pid: int | None) -> float:
    """Processor time of the worker so far; all of its threads."""
    if pid is None:
        return 0.0
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in tasks) / 1e9


async def _run_all(backend: PythonBackend, batches: Sequence[Sequence[InferenceRequest]]) -> BatchResult:
    """One after the other, begun by a call where that is possible, as a model instance does it; the last result."""
    results: list[BatchResult | Exception] = []
    ended = trio.Event()

    def note(result: BatchResult | Exception) -> None:
        results.append(result)
        go_on()

    def go_on() -> None:
        while len(results) < len(batches):
            begun = backend.begin(batches[len(results)], note)
            if begun is STARTED:
                return
            if begun is None:
                raise RuntimeError("the worker has no room for a batch after the end of the last one")
            results.append(begun)
        ended.set()

    go_on()
    await ended.wait()
    if isinstance(results[-1], Exception):
        raise results[-1]
    return results[-1]


async def _burst(backend: PythonBackend, pid: int | None, batch: int) -> Cost:
    batches = [[_request() for _ in range(batch)] for _ in range(_EXCHANGES)]
    before, began = _worker_seconds(pid), time.process_time()
    result = await _run_all(backend, batches)
    ended, after = time.process_time(), _worker_seconds(pid)
    if not all(isinstance(response, InferenceResponse) for response in result.responses):
        raise RuntimeError(f"the model has failed: {result.responses[0]}")
    requests_in_all = batch * _EXCHANGES
    return Cost((ended - began) / requests_in_all, (after - before) / requests_in_all)


async def measure(isolation: str, batch: int, bursts: int) -> Cost:
    """The least processor time of a request in batches of so many."""
    config = _config(isolation)
    source = ModelSource("add_sub", 1, MODEL, config, {"allow-in-process": "true"})
    backend = PythonBackend(InstanceSpec(source, "add_sub_0"))
    await backend.load()
    try:
        assert backend._loaded is not None  # the worker's process is nobody else's business
        pid = getattr(backend._loaded.link.runner, "pid", None)
        async with trio.open_nursery() as nursery:
            await nursery.start(backend.attend)
            costs = [await _burst(backend, pid, batch) for _ in range(bursts)]
            nursery.cancel_scope.cancel()
    finally:
        await backend.unload()
    return Cost(min(cost.server for cost in costs), min(cost.worker for cost in costs))


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bursts", type=int, default=100)
    bursts = parser.parse_args(arguments).bursts
    say("µs of processor time for a request    server   worker")
    for isolation in ("process", "in_process", "in_loop"):
        for batch in BATCHES:
            cost = trio.run(functools.partial(measure, isolation, batch, bursts))
            say(f"{isolation:12}batches of {batch:<12}{cost.server * 1e6:8.1f} {cost.worker * 1e6:8.1f}")


if __name__ == "__main__":
    main()
