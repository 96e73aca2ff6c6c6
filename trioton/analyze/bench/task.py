"""What the program that measures service times is told, and what it tells."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import msgspec
import trio

from trioton.analyze.search.service_times import ServiceTimes, service_times
from trioton.module_path import module_path
from trioton.perf.data.sources import Sources

_PROGRAM = "trioton.analyze.bench.in_process"


class Task(msgspec.Struct, frozen=True):
    """`configs` as JSON by the option of threads; `seconds` for each size of each."""

    repositories: tuple[str, ...]
    model: str
    flags: tuple[str, ...]
    configs: dict[str, str]
    sizes: tuple[int, ...]
    sources: Sources
    seconds: float = 0.3


class Times(msgspec.Struct, frozen=True):
    """Seconds by rows, and the standard deviation over the mean."""

    seconds: dict[int, float]
    variation: float


class Found(msgspec.Struct, frozen=True):
    times: dict[str, Times]
    failures: dict[str, str] = {}

    def service_times(self) -> Mapping[str, ServiceTimes]:
        return {key: service_times(each.seconds, each.variation) for key, each in self.times.items()}


async def measure_service_times(task: Task, seconds: float) -> Found:
    """In a process of its own, which is ended after so many seconds. What cannot be measured is told as a failure: a
    search does without."""
    with trio.move_on_after(seconds):
        done = await trio.run_process(
            [sys.executable, "-m", _PROGRAM],
            stdin=msgspec.json.encode(task),
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env={**os.environ, "PYTHONPATH": module_path()},
        )
        return _found(done)
    return Found({}, {"": f"service times took longer than {seconds:g} s"})


def _found(done: subprocess.CompletedProcess[bytes]) -> Found:
    try:
        return msgspec.json.decode(done.stdout, type=Found)
    except msgspec.MsgspecError:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return Found({}, {"": f"service times could not be measured: {lines[-1] if lines else done.returncode}"})
