"""Instructions of a server's processes, counted by valgrind's `callgrind`. Beside `processor`.

The same work takes nearly the same instructions each time, whatever else the machine does. Not in them is what the
kernel does for the process; how often that is asked is counted, too. Needs valgrind (`apt-get install valgrind`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench.peers import Peer

READY_SECONDS = 180.0
# A process that is stopped does not answer.
CONTROL_SECONDS = 60.0
ADVICE = "valgrind is not there: apt-get install valgrind"


class CountFailed(Exception):
    """valgrind is not there, or has not counted."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a process did in some time."""

    instructions: float
    system_calls: float
    seconds: float

    def without(self, idle: Work) -> Work:
        """Less what it does by itself in that time."""
        share = self.seconds / idle.seconds
        return Work(
            self.instructions - idle.instructions * share, self.system_calls - idle.system_calls * share, self.seconds
        )

    def __add__(self, other: Work) -> Work:
        """Of two processes, at the same time."""
        return Work(
            self.instructions + other.instructions,
            self.system_calls + other.system_calls,
            max(self.seconds, other.seconds),
        )

    def __truediv__(self, requests: float) -> Work:
        return Work(self.instructions / requests, self.system_calls / requests, self.seconds / requests)


def is_possible() -> bool:
    return shutil.which("callgrind_control") is not None


def counted(peer: Peer, file: Path, *, with_workers: bool = False) -> Peer:
    """The same server, whose instructions are counted; `with_workers` those of the processes that it starts, too.

    It looks for no requests that are still to come: how often is left to chance. Nor is a model asked for its
    configuration, which takes a process of its own.
    """
    tool = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--collect-systime=yes"]
    tool += [f"--trace-children={'yes' if with_workers else 'no'}", f"--callgrind-out-file={file}.%p"]
    flags = ("--disable-auto-complete-config", "--busy-poll-microseconds=0")
    # Sets of texts have the same order, and so the same collisions, in each run.
    environment = {**peer.environment, "PYTHONHASHSEED": "0"}
    return replace(peer, command=(*tool, *peer.command, *flags), environment=environment)


class Counter:
    """What one process has counted into files that begin with `file`, dump by dump."""

    def __init__(self, pid: int, file: Path) -> None:
        self._pid = pid
        self._file = file.with_name(f"{file.name}.{pid}")

    def begin(self) -> None:
        self._control("--instr=on")

    def end(self) -> None:
        self._control("--instr=off")

    def zero(self) -> None:
        self._control("--zero")

    def dump(self) -> tuple[int, int]:
        """The instructions and the system calls since `zero` or the last dump. Raises CountFailed."""
        known = self._dumps()
        self._control("--dump")
        new = self._dumps() - known
        if len(new) != 1:
            raise CountFailed(f"valgrind has written {len(new)} files of what it counted, expected one")
        return totals(new.pop().read_text())

    def during(self, work: Callable[[], object]) -> Work:
        """Raises CountFailed."""
        self.zero()
        began = time.monotonic()
        work()
        instructions, system_calls = self.dump()
        return Work(instructions, system_calls, time.monotonic() - began)

    def _dumps(self) -> set[Path]:
        return set(self._file.parent.glob(f"{self._file.name}.*"))

    def _control(self, option: str) -> None:
        try:
            command = ["callgrind_control", option, str(self._pid)]
            subprocess.run(command, check=True, capture_output=True, timeout=CONTROL_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            raise CountFailed(f"callgrind_control {option}: {error}") from None


def totals(dump: str) -> tuple[int, int]:
    """Instructions and system calls of all functions. Raises CountFailed."""
    events = re.search(r"^events: (.+)", dump, re.MULTILINE)
    found = re.search(r"^(?:summary|totals): ([\d ]+)", dump, re.MULTILINE)
    if events is None or found is None:
        raise CountFailed("what valgrind has written says no total")
    figures = dict(zip(events[1].split(), map(int, found[1].split()), strict=False))
    return figures.get("Ir", 0), figures.get("sysCount", 0)


def forget(file: Path) -> None:
    """Remove what earlier runs have counted into files that begin so."""
    for each in file.parent.glob(f"{file.name}.*"):
        each.unlink()
