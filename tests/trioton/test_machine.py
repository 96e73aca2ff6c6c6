"""Readings of the machine, from a /proc of our own making."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trioton.control_groups import GroupMemory
from trioton.machine import (
    Machine,
    MachineReading,
    available_memory,
    core_count,
    default_request_memory,
    memory_size,
)

MEMINFO = "MemTotal:        1000 kB\nMemFree:          100 kB\nMemAvailable:     400 kB\nHugePages_Total:       0\n"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def write_stat(proc: Path, *, busy: int, idle: int) -> None:
    (proc / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 7 7\ncpu0 1 1 1 1 1 1 1 1 1 1\n")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def machine(tmp_path: Path, clock: Clock) -> Machine:
    write_stat(tmp_path, busy=50, idle=50)
    (tmp_path / "meminfo").write_text(MEMINFO)
    return Machine(2.0, tmp_path, clock)


def test_the_first_reading_is_since_the_machine_started(machine: Machine) -> None:
    """There is no earlier one to compare with."""
    assert machine.reading() == MachineReading(0.5, 1000 * 1024, 600 * 1024)


def test_utilization_is_since_the_reading_before(machine: Machine, clock: Clock, tmp_path: Path) -> None:
    machine.reading()
    write_stat(tmp_path, busy=75, idle=125)
    clock.now = 2.0
    assert machine.reading().cpu_utilization == 0.25


def test_readings_are_kept_for_the_interval(machine: Machine, clock: Clock, tmp_path: Path) -> None:
    first = machine.reading()
    write_stat(tmp_path, busy=1000, idle=50)
    clock.now = 1.9
    assert machine.reading() is first


@pytest.mark.parametrize("text", ["", "cpu\n", "cpu a b c d e\n", "intr 1 2 3 4 5 6 7 8\n"])
def test_what_cannot_be_read_is_left_out(machine: Machine, tmp_path: Path, text: str) -> None:
    (tmp_path / "stat").write_text(text)
    (tmp_path / "meminfo").write_text(text)
    assert machine.reading() == MachineReading()


def test_a_machine_without_proc(tmp_path: Path) -> None:
    assert Machine(2.0, tmp_path / "absent").reading() == MachineReading()


def test_the_memory_is_that_of_the_group_if_that_is_less(tmp_path: Path) -> None:
    """What others than its own processes use counts for the machine, what the group uses for the group."""
    assert memory_size(tmp_path) == available_memory(tmp_path) == 8 << 30  # a system that does not say
    write(tmp_path / "proc/meminfo", MEMINFO)
    assert (memory_size(tmp_path), available_memory(tmp_path)) == (1000 * 1024, 400 * 1024)
    write(tmp_path / "proc/self/cgroup", "0::/unit\n")
    write(tmp_path / "proc/self/mountinfo", "1 2 0:3 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    write(tmp_path / "sys/fs/cgroup/unit/memory.max", "512000\n")
    assert (memory_size(tmp_path), available_memory(tmp_path)) == (512_000, 400 * 1024)
    write(tmp_path / "sys/fs/cgroup/unit/memory.current", "412000\n")
    assert (memory_size(tmp_path), available_memory(tmp_path)) == (512_000, 100_000)
    write(tmp_path / "sys/fs/cgroup/unit/memory.max", "9999999\n")
    assert (memory_size(tmp_path), available_memory(tmp_path)) == (1000 * 1024, 400 * 1024)


@pytest.mark.parametrize(
    ("size", "available", "expected"),
    [(1600, 1600, 400), (1600, 1000, 250), (1600, 0, 100), (300 << 20, 220 << 20, 55 << 20)],
)
def test_requests_fit_with_their_copies_into_what_is_available(size: int, available: int, expected: int) -> None:
    assert default_request_memory(size, available) == expected


@pytest.mark.parametrize(("quota", "expected"), [("25000 100000\n", 0.25), ("max 100000\n", None), (None, None)])
def test_a_group_may_have_less_than_the_machine(tmp_path: Path, quota: str | None, expected: float | None) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/\n")
    write(tmp_path / "proc/self/mountinfo", "1 2 0:3 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    if quota is not None:
        write(tmp_path / "sys/fs/cgroup/cpu.max", quota)
    own = len(os.sched_getaffinity(0))
    assert core_count(tmp_path) == (own if expected is None else expected)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("groups", "total", "used"),
    [
        ([], 1000 * 1024, 600 * 1024),
        ([GroupMemory(2000 * 1024, 1000)], 1000 * 1024, 600 * 1024),
        ([GroupMemory(500 * 1024, 100 * 1024), GroupMemory(800 * 1024, 1024)], 500 * 1024, 400 * 1024),
    ],
)
def test_the_memory_of_a_control_group(
    machine: Machine, tmp_path: Path, groups: list[GroupMemory], total: int, used: int
) -> None:
    """The smallest group counts, and none that is larger than the machine."""
    reading = Machine(2.0, tmp_path, groups=lambda: groups).reading()
    assert (reading.memory_total_bytes, reading.memory_used_bytes) == (total, used)
