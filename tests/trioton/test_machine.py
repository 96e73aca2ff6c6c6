"""Readings of the machine, from a /proc of our own making."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trioton.machine import Machine, MachineReading, core_count, memory_size

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


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("512000\n", 512_000), ("max\n", 1_024_000), ("99999999999\n", 1_024_000), (None, 1_024_000)],
)
def test_the_memory_is_that_of_the_container_if_that_is_less(tmp_path: Path, limit: str | None, expected: int) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
    assert memory_size(tmp_path, [tmp_path / "memory.max"]) == expected


def test_a_system_that_does_not_say_has_some_memory(tmp_path: Path) -> None:
    assert memory_size(tmp_path, []) > 1 << 30


@pytest.mark.parametrize(
    ("name", "quota", "period", "expected"),
    [
        ("cpu.max", "25000 100000\n", None, 0.25),
        ("cpu.max", "max 100000\n", None, None),
        ("cpu.cfs_quota_us", "50000\n", "100000\n", 0.5),
        ("cpu.cfs_quota_us", "-1\n", "100000\n", None),
        ("cpu.cfs_quota_us", "50000\n", None, None),
        ("cpu.max", "", None, None),
        ("nothing", "", None, None),
    ],
)
def test_a_container_may_have_less_than_the_machine(
    tmp_path: Path, name: str, quota: str, period: str | None, expected: float | None
) -> None:
    (tmp_path / name).write_text(quota)
    if period is not None:
        (tmp_path / "cpu.cfs_period_us").write_text(period)
    own = len(os.sched_getaffinity(0))
    found = core_count([tmp_path / "cpu.max", tmp_path / "cpu.cfs_quota_us"])
    assert found == (own if expected is None else expected)
