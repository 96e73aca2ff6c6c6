"""Memory and processor time of a tree of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trioton.analyze.bench.process_tree import PROC, usage

pytestmark = pytest.mark.skipif(not PROC.is_dir(), reason="this system has no /proc")


@pytest.mark.slow
def test_children_and_theirs_count() -> None:
    """A child that holds 64 MiB, and a grandchild that has computed and ended."""
    program = (
        "import subprocess, sys\n"
        "held = bytearray(b'x' * (64 << 20))\n"
        "subprocess.run([sys.executable, '-c', 'import time\\nwhile time.process_time() < 0.3: pass'], check=True)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    before = usage(os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "ready\n"
        own, all_of_it = usage(child.pid), usage(os.getpid())
        child.stdin.close()
    assert own.processes == 1
    assert 64 << 20 < own.memory < 256 << 20
    assert own.processor >= 0.28
    assert all_of_it.processes == before.processes + 1
    assert all_of_it.memory >= before.memory + (50 << 20)


def test_a_process_that_has_gone_uses_nothing() -> None:
    assert usage(2**22 + 1).processes == 0


def test_names_with_brackets_and_files_that_go(tmp_path: Path) -> None:
    for pid, parent in ((10, 1), (11, 10), (12, 11), (13, 1)):
        (tmp_path / str(pid)).mkdir()
        fields = f"S {parent} 0 0 0 0 0 0 0 0 0 100 50 25 25 0"
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b) {fields}")
    (tmp_path / "11" / "smaps_rollup").write_text("Rss: 9 kB\nPss: 5 kB\n")
    (tmp_path / "12" / "status").write_text("VmRSS:\t7 kB\n")
    (tmp_path / "14").mkdir()
    found = usage(10, tmp_path)
    assert found.processes == 3
    assert found.memory == 12 * 1024
    assert found.processor == pytest.approx(3 * 200 / os.sysconf("SC_CLK_TCK"))
