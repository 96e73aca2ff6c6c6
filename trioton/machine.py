"""Machine readings: CPU utilisation, memory use, and the limits of this process. From /proc,
where present."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trioton.control_groups import ROOT, GroupMemory, cpu_quotas, memory_limits

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class MachineReading:
    """`cpu_utilization` is from 0.0 to 1.0 over all cores; memory is in bytes. None where it cannot be known."""

    cpu_utilization: float | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None


# Taken where the system does not say.
_UNKNOWN_MEMORY = 8 << 30
# How often the bytes of a request are held at the most: as its body, for the worker, as the worker's answer, and as the
# response on its way.
_COPIES = 4


def memory_size(root: Path = ROOT) -> int:
    """Bytes of memory that this process may have: the machine's, or what a control group leaves it if that is less."""
    total, _ = Machine(0, root / "proc")._memory()
    return min([*_known(total), *(group.limit for group in memory_limits(root))], default=_UNKNOWN_MEMORY)


def available_memory(root: Path = ROOT) -> int:
    """How much of that is not used now."""
    total, used = Machine(0, root / "proc")._memory()
    machine = _known(None if total is None or used is None else total - used)
    return min([*machine, *(group.available for group in memory_limits(root))], default=_UNKNOWN_MEMORY)


def default_request_memory(size: int, available: int) -> int:
    """How much request bodies may hold, so that they fit with their copies into what is available; but a part of the
    whole where others use nearly all of it now."""
    return max(min(size // 2, available // _COPIES), size // 16)


def core_count(root: Path = ROOT) -> float:
    """Cores that this process may use: those of the machine, or its part of their time if that is less."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([float(own), *cpu_quotas(root)])


def _known(value: int | None) -> list[int]:
    return [] if value is None else [value]


@dataclass(frozen=True, slots=True)
class _CpuTimes:
    busy: int
    total: int


@dataclass(eq=False, slots=True)
class Machine:
    """Reads at most once per `interval` seconds; utilization is that since the reading before. Memory is that of the
    smallest of the `groups` of this process which limit it, where that is less than the machine's."""

    interval: float
    proc: Path = PROC
    clock: Callable[[], float] = time.monotonic
    groups: Callable[[], Sequence[GroupMemory]] = tuple
    _latest: MachineReading = field(default=MachineReading(), init=False)
    _read_at: float | None = field(default=None, init=False)
    _times: _CpuTimes | None = field(default=None, init=False)

    def reading(self) -> MachineReading:
        now = self.clock()
        if self._read_at is None or now - self._read_at >= self.interval:
            self._read_at = now
            total, used = self._memory()
            for group in self.groups():
                if total is None or group.limit < total:
                    total, used = group.limit, group.limit - group.available
            self._latest = MachineReading(self._utilization(), total, used)
        return self._latest

    def _utilization(self) -> float | None:
        times = self._cpu_times()
        if times is None:
            return None
        before, self._times = self._times or _CpuTimes(0, 0), times
        elapsed = times.total - before.total
        return min(1.0, max(0.0, (times.busy - before.busy) / elapsed)) if elapsed > 0 else 0.0

    def _cpu_times(self) -> _CpuTimes | None:
        """From the first line of /proc/stat: cpu user nice system idle iowait irq softirq steal …"""
        try:
            first, _, _ = (self.proc / "stat").read_text().partition("\n")
            name, *fields = first.split()
            # guest and guest_nice, which follow, are part of user and nice.
            counts = [int(value) for value in fields[:8]]
            idle = counts[3] + counts[4]
        except (OSError, ValueError, IndexError):
            return None
        return _CpuTimes(sum(counts) - idle, sum(counts)) if name == "cpu" else None

    def _memory(self) -> tuple[int | None, int | None]:
        """Total and used, from /proc/meminfo; used is what is not available to a new process."""
        try:
            lines = (self.proc / "meminfo").read_text().splitlines()
            sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
            total = sizes["MemTotal"]
            return total, total - sizes["MemAvailable"]
        except (OSError, ValueError, IndexError, KeyError):
            return None, None
