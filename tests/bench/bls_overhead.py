"""What a model's call of another model (BLS) costs: `python -m tests.bench.bls_overhead`.

The server's core runs in this process without a protocol, the models in their worker processes. The same calls of a
trivial `model.py` are made one after the other: by a client of the model itself, by a client of an ensemble with the
model as its only step, and by a second `model.py`, all of them in one `execute`. The cases take turns, and the fastest
turn of each counts, since whatever else the machine does only adds. Compared is what one call takes, with what it takes
as an ensemble step.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import trio

from actors.core.server_core import CoreSettings, ServerCore
from backends.registry import BackendRegistry
from protocol.messages import InferenceRequest, Tensor

WARM_UP = 50

TENSORS = """
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
CALLER_TENSORS = """
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "CALLS" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
ENSEMBLE = f"""platform: "ensemble" {TENSORS}
ensemble_scheduling {{ step [ {{ model_name: "step" model_version: -1
  input_map {{ key: "IN" value: "IN" }} output_map {{ key: "OUT" value: "OUT" }} }} ] }}
"""
STEP = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        (request,) = requests
        tensor = pb_utils.Tensor("IN", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())
        for _ in range(int(pb_utils.get_input_tensor_by_name(request, "CALLS").as_numpy()[0])):
            response = pb_utils.InferenceRequest(
                model_name="step", inputs=[tensor], requested_output_names=["OUT"]
            ).exec()
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
        return [response]
"""
ASYNC_CALLER = CALLER.replace("def execute", "async def execute").replace("= pb_utils.Inf", "= await pb_utils.Inf")
ASYNC_CALLER = ASYNC_CALLER.replace(".exec()", ".async_exec()")
PYTHON = 'backend: "python" instance_group [ { count: 1 kind: KIND_CPU } ]'
# Configuration and model.py.
MODELS = {
    "step": (PYTHON + TENSORS, STEP),
    "ensemble": (ENSEMBLE, ""),
    "exec": (PYTHON + CALLER_TENSORS, CALLER),
    "async_exec": (PYTHON + CALLER_TENSORS, ASYNC_CALLER),
}
CALLERS = ("exec", "async_exec")
BASE = "ensemble"


@dataclass(frozen=True)
class Result:
    """Microseconds per call: on the clock, and of the processors' time for the server and its workers."""

    name: str
    call_us: float
    cpu_us: float


def build(repository: Path) -> None:
    for name, (config, text) in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(text)
        (repository / name / "config.pbtxt").write_text(config)


async def measure(repository: Path, calls: int, elements: int, rounds: int) -> list[Result]:
    """All cases, in turns."""
    core = ServerCore(CoreSettings((repository,)), BackendRegistry())
    turns: dict[str, list[Result]] = {model: [] for model in MODELS}
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        for model in MODELS:
            await _run(core, model, min(calls, WARM_UP), elements)
        for _ in range(rounds):
            for model in MODELS:
                turns[model].append(await _run(core, model, calls, elements))
        core.stop()
    return [
        Result(model, min(each.call_us for each in taken), min(each.cpu_us for each in taken))
        for model, taken in turns.items()
    ]


async def _run(core: ServerCore, model: str, calls: int, elements: int) -> Result:
    tensor = Tensor.from_numpy("IN", np.zeros(elements, np.float32))
    began, cpu_began = time.perf_counter_ns(), _cpu_ns()
    if model in CALLERS:
        count = Tensor.from_numpy("CALLS", np.array([calls], np.int32))
        await core.infer(InferenceRequest(model, [tensor, count]))
    else:
        for _ in range(calls):
            await core.infer(InferenceRequest(model, [tensor]))
    ended, cpu_ended = time.perf_counter_ns(), _cpu_ns()
    return Result(model, (ended - began) / calls / 1e3, (cpu_ended - cpu_began) / calls / 1e3)


def _cpu_ns() -> int:
    """What the main threads of this process and of its workers have had of the processors so far."""
    here = Path(f"/proc/self/task/{os.getpid()}")
    threads = [here, *(Path(f"/proc/{pid}/task/{pid}") for pid in (here / "children").read_text().split())]
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)


def report(results: Sequence[Result]) -> str:
    (base,) = [each for each in results if each.name == BASE]
    lines = [f"{'':12} {'µs per call':>12} {'to ' + BASE:>12} {'CPU µs':>10} {'to ' + BASE:>12}"]
    for each in results:
        ratio, cpu_ratio = each.call_us / base.call_us, each.cpu_us / base.cpu_us
        lines.append(f"{each.name:12} {each.call_us:12.1f} {ratio:12.2f} {each.cpu_us:10.1f} {cpu_ratio:12.2f}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure what a model's call of another model costs.")
    parser.add_argument("--calls", type=int, default=1000, help="per case and round (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each case (default %(default)s)")
    parser.add_argument("--elements", type=int, default=16, help="FP32 numbers per tensor (default %(default)s)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        print(report(trio.run(measure, Path(folder), options.calls, options.elements, options.rounds)))


if __name__ == "__main__":
    main()
