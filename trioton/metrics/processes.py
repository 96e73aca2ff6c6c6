"""Process metrics: the build, the memory of the server and of the processes that it has started. From /proc."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import trio

from trioton.machine import PROC
from trioton.metrics.families import Family, Sample, Series

_BUILD = Family("trioton_build_info", "gauge", "1, with the versions that the server is made of as labels")
_MEMORY = Family(
    "trioton_process_resident_memory_bytes",
    "gauge",
    "Resident memory, in bytes, of the server's process and of all processes that it has started (workers)",
)
_COUNT = Family("trioton_worker_processes", "gauge", "Number of processes that the server has started")


def build_series() -> Iterator[Series]:
    labels = (
        ("version", metadata.version("trioton")),
        ("python", platform.python_version()),
        ("trio", trio.__version__),
    )
    yield Series(_BUILD, labels, (Sample(1),))


def process_series(proc: Path = PROC) -> Iterator[Series]:
    """Each process takes a moment to look at, so there is a series without samples for each."""
    resident, server = 0, os.getpid()
    found: list[int] = []
    to_visit = _children(server, proc)
    while to_visit:
        pid = to_visit.pop()
        found.append(pid)
        resident += _resident(pid, proc)
        to_visit += _children(pid, proc)
        yield Series(_MEMORY, (), ())
    for role, value in (("server", _resident(server, proc)), ("worker", resident)):
        yield Series(_MEMORY, (("role", role),), (Sample(value),))
    yield Series(_COUNT, (), (Sample(len(found)),))


def _children(pid: int, proc: Path) -> list[int]:
    """Those that any of its threads has started; none where the process has ended, or the system does not tell."""
    try:
        threads = os.listdir(proc / str(pid) / "task")
        texts = [(proc / str(pid) / "task" / thread / "children").read_text() for thread in threads]
    except OSError:
        return []
    return [int(child) for text in texts for child in text.split()]


def _resident(pid: int, proc: Path) -> int:
    try:
        pages = int((proc / str(pid) / "statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
