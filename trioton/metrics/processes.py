"""Process metrics: the build, the memory of the server and of the processes that it has started. From /proc."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import trio

from trioton.machine import PROC
from trioton.metrics.families import Family, Labels, Sample, Series

_BUILD = Family("trioton_build_info", "gauge", "1, with the versions that the server is made of as labels")
_MEMORY = Family(
    "trioton_process_resident_memory_bytes",
    "gauge",
    "Resident memory, in bytes, of the server's process and of all processes that it has started (workers)",
)
_COUNT = Family("trioton_worker_processes", "gauge", "Number of processes that the server has started")


def build_series() -> Iterator[Series]:
    yield Series(_BUILD, _build(), (Sample(1),))


@cache
def _build() -> Labels:
    """Read once: the version is in a file."""
    python = platform.python_version()
    return (("version", metadata.version("trioton")), ("python", python), ("trio", trio.__version__))


def process_series(proc: Path = PROC) -> Iterator[Series]:
    """Each thread of each process takes a moment to look at, so there is a series without samples for each."""
    resident, server = 0, os.getpid()
    found: list[int] = []
    to_visit = [server]
    while to_visit:
        pid = to_visit.pop()
        if pid != server:
            found.append(pid)
            resident += _resident(pid, proc)
        for thread in _threads(pid, proc):
            to_visit += _started_by(thread)
            yield Series(_MEMORY, (), ())
    for role, value in (("server", _resident(server, proc)), ("worker", resident)):
        yield Series(_MEMORY, (("role", role),), (Sample(value),))
    yield Series(_COUNT, (), (Sample(len(found)),))


def _threads(pid: int, proc: Path) -> list[str]:
    """Their folders; none where the process has ended."""
    folder = f"{proc}/{pid}/task"
    try:
        return [f"{folder}/{thread}" for thread in os.listdir(folder)]
    except OSError:
        return []


def _started_by(thread: str) -> list[int]:
    """The processes that a thread has started; none where it has ended, or the system does not tell."""
    try:
        with open(f"{thread}/children", "rb") as children:
            return [int(child) for child in children.read().split()]
    except OSError:
        return []


def _resident(pid: int, proc: Path) -> int:
    try:
        pages = int((proc / str(pid) / "statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
