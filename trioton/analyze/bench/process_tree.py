"""Memory and processor time of a process and all that it has started, from `/proc`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Usage:
    """Attributes:
    memory: bytes; what processes share counts once. 0 where the system does not tell.
    processor: seconds of all that run, and of all that have ended and were waited for.
    processes: how many run.
    """

    memory: int = 0
    processor: float = 0.0
    processes: int = 0


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    ticks: int


def usage(root: int, proc: Path = PROC) -> Usage:
    """Of a process with its descendants. Blocks for as long as the kernel takes to add up their memory."""
    tree = list(_tree(root, proc))
    ticks = sum(each.ticks for each in tree)
    memory = sum(_memory(each.pid, proc) for each in tree)
    return Usage(memory, ticks / os.sysconf("SC_CLK_TCK"), len(tree))


def _tree(root: int, proc: Path) -> Iterator[_Process]:
    children: dict[int, list[_Process]] = {}
    by_pid: dict[int, _Process] = {}
    for entry in proc.iterdir() if proc.is_dir() else ():
        if entry.name.isdigit() and (found := _process(entry)) is not None:
            by_pid[found.pid] = found
            children.setdefault(found.parent, []).append(found)
    waiting = [by_pid[root]] if root in by_pid else []
    while waiting:
        process = waiting.pop()
        yield process
        waiting += children.get(process.pid, [])


def _process(entry: Path) -> _Process | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        # The name of the program may hold blanks and brackets.
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
        return _Process(int(entry.name), int(fields[1]), sum(map(int, fields[11:15])))
    return None


def _memory(pid: int, proc: Path) -> int:
    """Its proportional part of all pages; where that is not told, all resident ones."""
    for name, field in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        with contextlib.suppress(OSError, ValueError, StopIteration):
            lines = (proc / str(pid) / name).read_text().splitlines()
            return int(next(line.split()[1] for line in lines if line.startswith(field))) * 1024
    return 0
