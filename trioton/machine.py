"""Readings of the machine: how busy its processors are, how much of its memory is used. From /proc, where present."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class MachineReading:
    """`cpu_utilization` is from 0.0 to 1.0 over all cores; memory is in bytes. None where it cannot be known."""

    cpu_utilization: float | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None


# Where the limits of a container are, by the version of control groups.
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
CGROUP_QUOTAS = (Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"))
# Taken where the system does not say.
_UNKNOWN_MEMORY = 8 << 30


def memory_size(proc: Path = PROC, limits: Sequence[Path] = CGROUP_LIMITS) -> int:
    """Bytes of memory that this process may have: the machine's, or its container's if that is less."""
    sizes = [total for total, _ in [Machine(0, proc)._memory()] if total is not None]
    for path in limits:
        with suppress(OSError, ValueError):  # "max" is no number
            sizes.append(int(path.read_text()))
    return min(sizes, default=_UNKNOWN_MEMORY)


def core_count(quotas: Sequence[Path] = CGROUP_QUOTAS) -> float:
    """Cores that this process may use: those of the machine, or its part of their time if that is less."""
    cores = [float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)]
    for path in quotas:
        with suppress(OSError, ValueError):  # "max" is no number
            quota, *period = path.read_text().split()
            whole = period[0] if period else path.with_name("cpu.cfs_period_us").read_text()
            if int(quota) > 0:  # version 1 has -1 for no quota
                cores.append(int(quota) / int(whole))
    return min(cores)


@dataclass(frozen=True, slots=True)
class _CpuTimes:
    busy: int
    total: int


@dataclass(eq=False, slots=True)
class Machine:
    """Reads at most once per `interval` seconds; utilization is that since the reading before."""

    interval: float
    proc: Path = PROC
    clock: Callable[[], float] = time.monotonic
    _latest: MachineReading = field(default=MachineReading(), init=False)
    _read_at: float | None = field(default=None, init=False)
    _times: _CpuTimes | None = field(default=None, init=False)

    def reading(self) -> MachineReading:
        now = self.clock()
        if self._read_at is None or now - self._read_at >= self.interval:
            self._read_at = now
            total, used = self._memory()
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
