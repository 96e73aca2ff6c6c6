"""The memory of processes, from files as the kernel has them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from trioton.metrics.processes import process_series


def values(proc: Path) -> Mapping[str, float]:
    return {
        dict(series.labels).get("role", "count"): series.samples[0].value
        for series in process_series(proc)
        if series.samples
    }


def add(proc: Path, pid: int, pages: int, children: Mapping[int, str]) -> None:
    """A process whose threads have started those."""
    for thread, text in children.items():
        task = proc / str(pid) / "task" / str(thread)
        task.mkdir(parents=True)
        (task / "children").write_text(text)
    (proc / str(pid) / "statm").write_text(f"99 {pages} 1 1 0 1 0\n")


def test_the_server_and_all_that_it_has_started(tmp_path: Path) -> None:
    """Children of children too, and by whatever thread; what has ended meanwhile is left out."""
    page = os.sysconf("SC_PAGE_SIZE")
    add(tmp_path, os.getpid(), 7, {1: "10 11 ", 2: "12 "})
    add(tmp_path, 10, 100, {10: "13 "})
    add(tmp_path, 11, 20, {11: ""})
    add(tmp_path, 13, 3, {13: ""})
    assert values(tmp_path) == {"server": 7 * page, "worker": 123 * page, "count": 4}


def test_a_system_without_such_files(tmp_path: Path) -> None:
    assert values(tmp_path) == {"server": 0, "worker": 0, "count": 0}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_real_process() -> None:
    before = values(Path("/proc"))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        after = values(Path("/proc"))
        assert child.stdin is not None
        child.stdin.close()
    assert before["server"] > 1 << 20
    assert after["count"] >= 1
    assert after["worker"] > 0
